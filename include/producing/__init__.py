"""What writes to the topics: generated messages, broken ones, and the follower of an event stream."""
