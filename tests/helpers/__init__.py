"""What several tests use: worlds with known truth, small policies, studies, servers, browsers."""
