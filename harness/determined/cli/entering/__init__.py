"""What runs beside a task: `det exec`, `det attach`, `det trial dump`."""
