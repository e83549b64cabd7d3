"""Makes serving models: from dynamic Paddle, through a static program; importing it imports no framework."""
