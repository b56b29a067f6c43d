package diagnose

// Acceptable are the ids of causes that a user may accept: rules by which an engine or a reference computes otherwise.
// Mistakes of weights, and of rows, positions or experts that are mixed up, are none: the next one would have the same id.
// Neither are roundings that a trace's manifest may declare.
var Acceptable = []string{"activation", "attention-scale", "attention-sink", "aux-loss-alpha", "aux-loss-counts",
	"aux-loss-form", "bf16-products", "bias-leak", "causal-mask", "config-values", "entry-overlap", "entry-positions",
	"experts-per-token", "experts-unweighted", "group-count", "group-fill", "group-mask", "group-worth", "head-count",
	"index-topk", "indexer-eps", "indexer-head-scale", "indexer-layer", "indexer-norm-bias", "indexer-relu",
	"indexer-rope-layout", "inverse-rope", "kv-heads", "latent-eps", "latent-norm-width", "logit-softcap",
	"mtp-carry", "mtp-halves", "mtp-token", "norm-after-rope", "norm-eps", "norm-topk", "output-groups", "padding-mask", "qk-norm",
	"reduced-precision-sums", "reference", "replay-zeros", "residual-normed", "rope-in-layer", "rope-layout",
	"rope-scaling", "rope-tables", "rope-theta", "rotary-dtype", "routed-scale", "routed-sum-scaled", "router-bf16",
	"router-bias", "router-input", "router-rounded", "scores-of-groups", "scoring-func", "shared-experts",
	"sinkhorn-iterations", "sinkhorn-order", "sliding-window", "streams-transposed", "sum-normalised", "swiglu-clamp",
	"tf32-products", "topk-group", "yarn-mscale", "zero-experts"}
