"""Maintenance jobs: functions on a SparkSession, and commands of `varlog spark`."""
