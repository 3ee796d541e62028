"""Decisions for KEDA, over gRPC."""
