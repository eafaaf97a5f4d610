"""What people look at: reports, web pages, live pages, lag and metrics."""
