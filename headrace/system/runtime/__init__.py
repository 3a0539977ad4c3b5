"""Workers and what keeps them: sessions, hosts, groups, handles, managers."""
