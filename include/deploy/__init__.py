"""What `docker-compose.yml` needs beside the code: the image, its health checks, the secrets' generator."""
