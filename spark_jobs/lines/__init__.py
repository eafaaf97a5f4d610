"""The same pipelines over lines of a socket or a folder."""
