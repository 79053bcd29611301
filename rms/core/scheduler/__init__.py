"""The engine, the scheduler that numbers decisions, its twin and its snapshots."""
