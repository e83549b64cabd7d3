"""Programs: their specs, their inputs, their engines, their runners."""
