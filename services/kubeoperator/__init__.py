"""The kubeoperator: announces the applications that a Kubernetes cluster declares."""
