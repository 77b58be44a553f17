"""Which op exists for which device."""
