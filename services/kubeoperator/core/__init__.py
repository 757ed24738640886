"""Decisions of the kubeoperator: objects of Kubernetes in, declarations and status out."""
