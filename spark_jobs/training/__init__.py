"""What a new JVM is made to do once, so that its classes can be kept."""
