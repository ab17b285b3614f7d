"""Chakra, the open format of workload graphs: read, link, export, check, import and synthesise."""
