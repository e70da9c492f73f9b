"""What helps to test agents and environments; ships to users. Importing it does nothing."""
