"""What `docker-compose.yml` needs besides the code: the image, its health checks, the generator of secrets."""
