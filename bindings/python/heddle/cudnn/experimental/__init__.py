"""What the frontend calls experimental: operators of frameworks."""
