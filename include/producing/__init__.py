"""Write messages to a pipeline's topics: generated ones, deliberately broken ones, or those of an event stream."""
