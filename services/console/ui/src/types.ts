// Fields of messages that the page shows, as schemas/ has them.
export interface AppSpec { name: string; cpu_limit: number; memory_limit: number; policy: string; mode: string }
export interface AppState {
  spec: AppSpec; cpu_committed_us: number; memory_committed_bytes: number; memory_reserved_bytes: number; owner: string;
}
export interface Estimate { median: number; low: number; high: number }
export interface Configuration { instance_type: string; provider: string; workers: number; batch_size: number }
export interface ConfigurationPrediction {
  configuration: Configuration; time_s: Estimate; cost_usd: Estimate | null; feasible: number; known: boolean;
  why_unknown: string; reasons: string[]; pareto: boolean;
}
export interface Prediction {
  job: string; task: { task: string }; model: { model: string; version: string }; prices_as_of: string | null; level: number;
  predictions: ConfigurationPrediction[]; considered: number; time_ns: number;
}
export interface PathState {
  destination: string; kernel: string[]; frr: string[] | null; bfd_up: string[] | null; agree: boolean; override: string[]; reason: string;
}
export interface NetworkState {
  node: string; offload: string; full_reconciles: number; writes: number; last_reconcile_age_s: number; ports: string[]; encapsulation_device: string;
  vteps: string[]; macs: number; installed: number; in_hw: number; not_in_hw: number; unmanaged: number; paths: PathState[]; problems: string[];
}
export interface Rule { device: string; mac: string; vtep: string; vni: number; pref: number; handle: number; in_hw: boolean | null; managed: boolean; note: string }
export interface Rules { node: string; total: number; rules: Rule[] }
