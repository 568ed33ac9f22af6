"""The jobs that a log needs: each is a function on a SparkSession, and a command of `varlog spark`."""
