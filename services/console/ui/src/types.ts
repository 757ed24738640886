// Fields of messages that the page shows, as schemas/ has them.
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
export interface PlannedDevice {
  rank: number; samples: number; microbatches: number; state_share: number; planned_bytes: number; allowed_bytes: number; memory_bytes: number;
}
/** As the console tells it: `predicted_us` is the plan's step, and the least and most of its interval; 0: its plan is not known. */
export interface Training {
  job: string; node: string; generation: number; step: number; total: number; step_us: number; predicted_us: [number, number, number];
  batch: number; engine: string; drift: string; end: string; devices: PlannedDevice[];
}
export interface RunTime { low_s: number; median_s: number; high_s: number }
export interface JobSpan { attempt: number; begin_ns: number; end_ns: number; nodes: string[] }
export interface TrafficProfile {
  period_ms: number; phases: { begin_ms: number; end_ms: number; bits_per_s: number }[]; sent_bytes: number; congestion_control: string;
}
export interface JobShift { period_ms: number; shift_ms: number }
export interface LinkScore { link: string; bits_per_s: number; jobs: string[]; unshifted: number; score: number; why: string }
export type JobPhase = "waiting" | "running" | "stopping" | "ended" | "failed" | "cancelled";
export interface QueuedJob {
  job: string; phase: JobPhase; workers: number; slots: number; preemption: string; nodes: string[]; attempt: number; preemptions: number;
  submitted_ns: number; started_ns: number; ended_ns: number; ran_s: number; waited_s: number; restoring_s: number; lost_s: number;
  estimate: RunTime | null; estimate_source: string; left: RunTime | null; expected_start_ns: number; expected_end_ns: number;
  index: number; ahead: string[]; why: string; spans: JobSpan[];
  traffic?: TrafficProfile | null; shift?: JobShift | null; congestion_control?: string; // not of a scheduler that learns no traffic
}
export interface ClusterNode {
  node: string; slots: number; gpus: number; cores: number; memory_bytes: number; rack: string; drained: boolean; silent: boolean; why: string;
}
export interface Queue {
  leader: string; time_ns: number; policy: string; slots: number; taken_slots: number; jobs: QueuedJob[]; nodes: ClusterNode[]; left_out: number;
  links?: LinkScore[];
}
export interface JobReason { turn: number; free_slots: number; chosen: boolean; held: boolean; index: number; service_slot_s: number; why: string }
export interface JobHistory {
  job: QueuedJob; spec: { command: string[]; directory: string; grace_s: number };
  history: { time_ns: number; sequence: number; what: string; why: string; reason: JobReason | null }[];
}
