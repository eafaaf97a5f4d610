"""What Spark has of the services: the JVM that stays for short applications, and Airflow's pool of drivers."""
