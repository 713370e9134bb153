"""The clock of the keepers: alarms, delayed runs, schedules."""
