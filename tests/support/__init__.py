"""Helpers that tests share: servers, deployments, clients, faults and waiting."""
