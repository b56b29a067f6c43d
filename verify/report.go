package verify

import (
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
)

// Verdict of a check or of the whole run.
type Verdict string

// The verdicts. Inconclusive is never a pass: something was not checked.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	Skipped      Verdict = "skipped"
	Inconclusive Verdict = "inconclusive"
)

// Report is what a verification found. Its JSON is the command's --json document.
type Report struct {
	Verdict         Verdict  `json:"verdict"`
	Mode            Mode     `json:"mode"`
	FirstDivergence *string  `json:"first_divergence"` // golden tensor of the first failed check
	Cause           *Cause   `json:"cause"`
	Reasons         []string `json:"reasons,omitempty"` // why the verdict is not a pass, beside failed checks
	Coverage        Coverage `json:"coverage"`
	Routing         Routing  `json:"routing"`
	Golden          Golden   `json:"golden"`
	Rules           Rules    `json:"rules"`
	Accumulate      string   `json:"accumulate"`
	Checks          []Check  `json:"checks"` // in model order
}

// Cause names a mistake under which the first divergence goes away.
type Cause struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// Check is one golden tensor against the model's.
type Check struct {
	Tensor   string   `json:"tensor"`
	Verdict  Verdict  `json:"verdict"`
	Reason   string   `json:"reason,omitempty"` // why it failed other than by a limit, or was skipped
	DType    string   `json:"dtype,omitempty"`
	Shape    []int    `json:"shape,omitempty"`
	RelRMS   *float64 `json:"rel_rms"` // null where nothing could be measured
	RowRMS   *float64 `json:"row_rms"`
	MaxRMS   *float64 `json:"max_rms"`
	MaxAbs   *float64 `json:"max_abs"`
	BitEqual *float64 `json:"bit_equal"`
	OneULP   *float64 `json:"one_ulp"`
	WorstRow int      `json:"worst_row"`
	Index    []int    `json:"index,omitempty"` // of max_abs, or of the first non-finite element
	Got      string   `json:"got,omitempty"`   // there
	Want     string   `json:"want,omitempty"`
	Limit    *float64 `json:"limit"`  // of rel_rms
	Limits   *Limits  `json:"limits"` // all of them
	Margin   *float64 `json:"margin"` // the largest metric/limit; at most 1 passes

	layer int // -1 outside the layers
}

// Coverage says what took part in a checked stage.
type Coverage struct {
	GoldenTensors    int      `json:"golden_tensors"`
	GoldenChecked    int      `json:"golden_checked"`
	GoldenUnchecked  []string `json:"golden_unchecked"`
	Weights          int      `json:"weights"`
	WeightsChecked   int      `json:"weights_checked"`
	WeightsUnchecked []string `json:"weights_unchecked"` // beside those of experts not reached
	EmbeddingRows    int      `json:"embedding_rows"`    // of embed_tokens, that the input reads
	VocabSize        int      `json:"vocab_size"`        // rows that there are
	Experts          int      `json:"experts"`           // routed, over all layers
	ExpertsReached   int      `json:"experts_reached"`
	Unreached        []Layer  `json:"experts_unreached"` // experts that no token was routed to
	// OutsideForward counts the weights of multi-token prediction layers that the
	// checkpoint holds. They take no part in the forward pass and were not verified.
	OutsideForward int `json:"outside_forward"`
}

// Layer lists experts of one layer.
type Layer struct {
	Layer   string `json:"layer"`
	Experts []int  `json:"experts"`
}

// Routing counts the choices of experts.
type Routing struct {
	Choices         int `json:"choices"`    // tokens × layers × k
	ExactTies       int `json:"exact_ties"` // other experts, whose scores are equal to the bit
	NearTies        int `json:"near_ties"`  // other experts, whose scores tie within the measured noise
	Mismatches      int `json:"mismatches"` // other experts, for no such reason
	Rows            int `json:"rows"`       // tokens × layers
	NearRows        int `json:"near_rows"`  // rows with near ties
	NearRowsAllowed int `json:"near_rows_allowed"`
}

// Rules are those in force where references differ: see config.Config.As.
type Rules struct {
	Reference     config.Reference `json:"reference"`
	NormaliseTopK bool             `json:"normalise_topk"`
	TopKScale     float64          `json:"topk_scale"`
	MoELayerFreq  int              `json:"moe_layer_freq"` // 1 if ignored
}

// Golden says what the pack was made from.
type Golden struct {
	Reference       Reference                 `json:"reference"`
	Mode            string                    `json:"mode"`             // "eval" or "train"
	ConfigOverrides map[string]jsontext.Value `json:"config_overrides"` // config.json keys that the reference ran with
	ComputeDType    string                    `json:"compute_dtype"`
	Batch           int                       `json:"batch"`
	Seq             int                       `json:"seq"`
	Checkpoint      map[string]string         `json:"checkpoint"` // file -> hash
}
