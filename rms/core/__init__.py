"""The scheduler: state, events, policies, energy books. No I/O."""
