// Package report holds what a verification found, and renders it: Report.WriteText for people, JSON,
// WriteJUnit and WriteHTML. It decides nothing.
package report

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Verdict of a check or of the whole run.
type Verdict string

// The verdicts. Inconclusive is never a pass: something was not checked. Skipped is one of checks, and of a run of
// a part of the model that has nothing to verify. Accepted is one of checks: beyond its limits, and within them with an
// accepted cause undone.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	Skipped      Verdict = "skipped"
	Inconclusive Verdict = "inconclusive"
	Accepted     Verdict = "accepted"
)

// Report is what a verification found. Its JSON is the command's --json document. The run shows Checks, Places, Doubts,
// Routing, Free, Beside and the inputs of Scope; verdict, reasons and counts follow from these.
type Report struct {
	Verdict         Verdict `json:"verdict"`          // of the whole run
	Mode            Mode    `json:"mode"`             // how stages were fed
	FirstDivergence *string `json:"first_divergence"` // golden tensor of the first failed check
	Cause           *Cause  `json:"cause"`            // the most likely of Causes; nil if there is none
	// Causes are all mistakes that explain the first divergence: first what is seen without
	// a guess, then the config, then the weights, each from the simplest on.
	Causes []Cause `json:"causes"`
	// Hints are what is odd about the first divergence's weights but explains nothing by itself.
	Hints []Cause `json:"hints"`
	// what the user accepts, and what it explains: without these stages the verdict stands; absent if nothing is accepted
	Accepted []AcceptedCause `json:"accepted,omitempty"`
	// OtherWeights says that the pack was recorded from other weights, and what shows that; empty if nothing does
	OtherWeights string `json:"other_weights,omitempty"`
	// weight files with the name of one of the pack's checkpoint and another hash, each with the parts of the model that
	// it holds: "model.safetensors (layers 1, 2)"
	OtherFiles []string `json:"other_files,omitempty"`
	Next       *Next    `json:"next,omitempty"` // what to do about a failure without a cause
	// Rounding is not nil if weights are held to what a conversion's rounding may have done
	// to them: then a pass is one within that.
	Rounding *Rounding `json:"rounding"`
	Scope    Scope     `json:"scope"` // what the verdict is a statement about
	// at the first failing stage, as the user wants: what follows was not looked at
	Stopped    bool     `json:"stopped"`
	UserLimits bool     `json:"user_limits"`       // some limits are the user's: a pass is one by these
	Options    Options  `json:"options"`           // what else the user chose
	Reasons    []string `json:"reasons,omitempty"` // why the verdict is not a pass, beside failed checks
	Coverage   Coverage `json:"coverage"`          // what was checked
	Routing    Routing  `json:"routing"`           // how experts were chosen
	Golden     Golden   `json:"golden"`            // the pack
	Replay     *Replay  `json:"replay,omitempty"`  // the trace whose choices of experts are replayed; absent without one
	Against    *Against `json:"against,omitempty"` // another trace of the same tokens; absent without one
	Rules      Rules    `json:"rules"`             // of the reference
	Config     Settings `json:"config"`            // how config.json and what the reference ran with go together
	// stored tensors that contradict config.json, and what was computed with in their place, in words
	Beside []string `json:"beside"`
	// kinds of stages that the pack has not: errors are carried on over them
	Free       []string `json:"free"`
	Limits     []string `json:"limits"`     // what the checks are held to, in words; each has its own in numbers
	Accumulate string   `json:"accumulate"` // our dot products: "float64" or "float32"
	Checks     []Check  `json:"checks"`     // in model order
	// what the run did with each part of the model that it knows, in model order: a merge of reports needs it
	Places []Place `json:"places"`
	// what Reasons are made of, beside what the members above say: a merge joins them
	Doubts []Doubt `json:"doubts"`

	unfinished bool // there is nothing but the verdict and its reason
}

// Rounding says that the checkpoint differs from the reference's by no more than what a
// conversion did to its weights by rounding them.
type Rounding struct {
	Weights    int      `json:"weights"`    // that were rounded
	Operations []string `json:"operations"` // that rounded them, such as "cast BF16"
	// Stages would fail if the weights were the reference's own; empty if all would pass.
	Stages []string `json:"stages"`
	// Error is the largest relative RMS error of these stages; null if none is finite.
	Error *float64 `json:"error"`
	// Allowed is the largest that 8 standard deviations allow one of these stages, as
	// relative RMS.
	Allowed *float64 `json:"allowed"`
	// Layers are the stages of largest relative RMS error of each layer, the worst layer first.
	Layers []RankedError `json:"layers"`
	// Experts are the same of the single routed experts that the pack has stages of.
	Experts []RankedError `json:"experts"`
}

// RankedError is how far the worst stage of a layer, or of a routed expert, is off.
type RankedError struct {
	Layer  int     `json:"layer"`   // number
	Expert int     `json:"expert"`  // -1 of layers
	Tensor string  `json:"tensor"`  // the stage
	RelRMS float64 `json:"rel_rms"` // of the stage
}

// Scope says what the verdict is a statement about: the parts of the model that were run.
type Scope struct {
	Text string `json:"text"` // in words, such as "layers 3-5 of 61"
	// Whole: all parts were run, each from what the one before gave, and nothing that the pack
	// leaves out on purpose keeps a weight from being checked.
	Whole    bool     `json:"whole"`
	Selected bool     `json:"selected"` // the user selects a part of the pack
	Part     *Part    `json:"part"`     // that the user selects; null without one
	Stages   []string `json:"stages"`   // globs of stages that the user selects; empty if all are
	// with a weight that took part in a checked stage, prediction layers among them
	Layers    []int `json:"layers"`
	Chosen    int   `json:"chosen,omitempty"`  // tokens whose choices of experts alone were compared; absent of others
	Routers   []int `json:"routers,omitempty"` // of these, layers of which the router alone was run
	Blocks    []int `json:"blocks,omitempty"`  // of these, layers of which the MLP alone was run: attention is not computed
	Of        int   `json:"of"`                // layers of the decoder
	Embedding bool  `json:"embedding"`         // likewise
	Head      bool  `json:"head"`              // likewise, the final norm or lm_head
	// what layers began with, where it was not what the part before gave
	Inputs      []ScopeInput `json:"inputs"`
	Unread      []int        `json:"unread_layers"`  // layers whose weights were not read
	UnreadParts []string     `json:"unread"`         // the same, the embedding and the head in words
	Weights     int          `json:"weights_unread"` // weights that were not read, not even for a NaN
	// of these, weights in files whose headers were not read: their shapes were not compared with the config
	ByName int `json:"weights_by_name,omitempty"`
	// parts of names of tensors that the model does not compute, and the run did not read; absent if it computes all
	Unlisted []string `json:"unlisted,omitempty"`
	// weights that ran, but whose stages are absent on purpose, or not selected
	LeftOut int `json:"weights_unchecked"`
	// of the weights that were read, experts that no token reached included
	Bytes int64 `json:"weight_bytes"`
	// golden tensors that were not selected, or came after the run was stopped
	NotLooked int `json:"stages_unlooked"`
}

// ScopeInput is what a layer began with.
type ScopeInput struct {
	Layer int    `json:"layer"` // number; that of the decoder's layers stands for the head
	Kind  string `json:"kind"`  // Recorded or Seeded
	Text  string `json:"text"`  // in words
}

// Options are choices of the user that change what checks are held to.
type Options struct {
	Limits      map[string]float64 `json:"limits"`           // factors of stages
	RotaryDType string             `json:"rotary_dtype"`     // of the reference's angles
	Accept      []string           `json:"accept,omitempty"` // ids of causes that do not fail the run
}

// Place is a part of the model: the embedding, a layer, or the head.
type Place struct {
	Name     string `json:"place"`    // Embedding, Head, or a layer's number
	Needed   bool   `json:"needed"`   // a run of everything compares stages of it
	Selected bool   `json:"selected"` // this run compares stages of it
	Ran      bool   `json:"ran"`      // this run computed it, if only for a stage elsewhere
	// of the layer the MLP alone is computed, not attention
	Block bool `json:"block,omitempty"`
	// Weights of it that the checkpoint must hold
	Weights int `json:"weights"`
	ByName  int `json:"by_name"`          // of these, known by name only: the header of their file was not read
	Unread  int `json:"unread,omitempty"` // of Weights, all but the router's, which alone was run
	Checked int `json:"checked"`          // of Weights, as those below: took part in a checked stage
	// of Checked: took part in failed stages alone, or decide choices beside such a router; absent if none did
	Failed    int      `json:"failed,omitempty"`
	Unchecked []string `json:"unchecked"` // ran in no checked stage, beside those of experts not reached
	Unpinned  []string `json:"unpinned"`  // ran in checked stages that are the same without them
	LeftOut   int      `json:"aside"`     // ran in stages that are absent on purpose, or not selected
	Copies    int      `json:"copies"`    // copies of the embedding
	Experts   int      `json:"experts"`   // routed
	Reached   int      `json:"reached"`   // of these, by a token
	Probed    int      `json:"probed"`    // of the others, by a probe
	Unreached []int    `json:"unreached"` // by neither
	Bytes     int64    `json:"bytes"`     // of the weights that ran
	// of Settings.Tried, keys that a compared stage of it tells from half as much, and from twice as much
	TellsHalf  []string `json:"tells_half"`
	TellsTwice []string `json:"tells_twice"`
	// Keys counts the choices of keys by its indexer; absent if none was compared
	Keys *KeyChoices `json:"keys,omitempty"`
	// Clamped reports whether a neuron went beyond swiglu_limit; absent without such a limit
	Clamped *bool `json:"clamped,omitempty"`
}

// The places outside the layers.
const (
	EmbeddingPlace = "embedding"
	HeadPlace      = "head"
)

// Layer returns the number of a place's layer, -1 outside the layers.
func (p *Place) Layer() int {
	if layer, err := strconv.Atoi(p.Name); err == nil {
		return layer
	}
	return -1
}

// Doubt is a kind of reason why a verdict is no pass, and what is so.
type Doubt struct {
	Kind string   `json:"kind"` // such as "zeros"
	Of   []string `json:"of"`   // stages, layers, or whole reasons
}

// Part is the share of the model that a run verifies: part Index of a number of parts, from 1 on.
type Part struct {
	Index int `json:"index"` // from 1 on
	Of    int `json:"of"`    // number of parts
}

// Cause names a mistake without which the first divergence goes away, or what is odd about a weight.
type Cause struct {
	ID   string `json:"id"`   // of the mistake, such as "norm-eps"
	Text string `json:"text"` // what is wrong, for people
	// Of the failing stages of the layer those that pass without the mistake, and all of them; 0 where no mistake
	// was undone.
	Explains int `json:"explains,omitempty"`
	Failing  int `json:"failing,omitempty"`
}

// String returns the cause in words, with how much a hint explains.
func (c *Cause) String() string {
	words := c.ID + ": " + c.Text
	if c.Explains < c.Failing {
		words += fmt.Sprintf(" (explains %d of %s of the layer)", c.Explains, text.Plural(c.Failing, "failing stage"))
	}
	return words
}

// AcceptedCause is a cause that the user accepts.
type AcceptedCause struct {
	ID     string   `json:"id"`     // of the cause
	Text   string   `json:"text"`   // of the cause, for people
	Stages []string `json:"stages"` // that are within their limits with the cause undone
}

// Next is what to do about a first divergence without a cause.
type Next struct {
	Text    string   `json:"text"`    // for people
	Weights []string `json:"weights"` // that took part in the first divergence
	Command string   `json:"command"` // to run; ORIGINAL, CHECKPOINT, OLD and TRACE stand for paths; empty without one
}

// Check is one golden tensor against the model's.
type Check struct {
	Tensor  string  `json:"tensor"`           // as the pack names it
	Verdict Verdict `json:"verdict"`          // Pass, Fail, Skipped or Accepted
	Reason  string  `json:"reason,omitempty"` // why it failed other than by a limit, or was skipped
	// Status is the kind of some Reasons, such as "not-looked-at"
	Status Status `json:"status,omitempty"`
	// Accepted is the cause that explains an accepted check.
	Accepted *Cause `json:"accepted,omitempty"`
	// Failed are the measures beyond their limits, in the order of the fields below. A check that
	// failed otherwise, such as by its shape, has none, but a Reason.
	Failed []Measure `json:"failed,omitempty"`
	DType  string    `json:"dtype,omitempty"` // the golden's
	Shape  []int     `json:"shape,omitempty"` // the golden's
	// Padding is the number of rows of padding, which were not compared.
	Padding int `json:"padding"`
	// Distinct is the number of rows compared that differ: an RMS over rows counts rows that
	// are alike, to 2^-16 of their largest element, once.
	Distinct int `json:"distinct_rows"`

	// In local mode, in standard deviations of the rounding errors that the analysis
	// expects; null where nothing could be measured.
	Z       *float64 `json:"z"`        // the largest distance of an element
	RMSZ    *float64 `json:"rms_z"`    // the root of the mean of their squares
	RowZ    *float64 `json:"row_z"`    // the same of the row that has most; float32 goldens
	ColumnZ *float64 `json:"column_z"` // of the column that has most; float32 goldens
	// the largest of a neuron, of MLPs: exact beyond 4, an estimate up to that
	NeuronZ *float64 `json:"neuron_z"`
	// RMS of differences in standard deviations that have all roundings in them, and the largest slope of differences over
	// values: of a stage that an engine rounds in a way that is not known; absent of others
	RoundingRMS *float64 `json:"rounding_rms,omitempty"`
	Slope       *float64 `json:"slope,omitempty"`
	// that a residual lies on, or the one with NeuronZ, where the check failed
	Neuron *bounds.Neuron `json:"neuron,omitempty"`
	// 8 standard deviations over the golden, as RMS: what a deviation must be to be seen
	Sees      *float64 `json:"sees"`
	Ambiguous *float64 `json:"ambiguous"`       // BF16, F16: share of elements that may round to either neighbour
	Beyond    int      `json:"beyond"`          // elements beyond their limit
	Where     string   `json:"where,omitempty"` // columns that they all lie in, if few
	// Rows says which rows are beyond a limit, and what these alone have in common; of failed checks of stages and choices
	Rows string `json:"rows,omitempty"`

	// Of the first divergence, if they are few.
	// routed experts that account for all tokens beyond a limit, together
	Experts     []int `json:"experts,omitempty"`
	ExpertOneOf []int `json:"expert_one_of,omitempty"` // routed experts each of which accounts for all of these tokens
	// rows of Weights that all columns with elements beyond a limit are products with
	WeightRows []int    `json:"weight_rows,omitempty"`
	Weights    []string `json:"weights,omitempty"` // with WeightRows: the weight and, if there is one, the bias

	// Of a choice of experts that failed: how far the golden's expert at Index was from being
	// chosen.
	Gap *Gap `json:"gap,omitempty"`

	// see Metrics for this and those below; null where nothing could be measured
	RelRMS   *float64 `json:"rel_rms"`
	RowRMS   *float64 `json:"row_rms"`   // of Metrics
	MaxRMS   *float64 `json:"max_rms"`   // of Metrics
	MaxAbs   *float64 `json:"max_abs"`   // of Metrics
	BitEqual *float64 `json:"bit_equal"` // of Metrics
	OneULP   *float64 `json:"one_ulp"`   // of Metrics
	WorstRow int      `json:"worst_row"` // of row_rms
	// MaxAbsIndex is the place of max_abs; absent where nothing could be measured.
	MaxAbsIndex []int    `json:"max_abs_index,omitempty"`
	Index       []int    `json:"index,omitempty"`   // of z or max_abs, or of the first non-finite element
	Got         string   `json:"got,omitempty"`     // ours at Index; in local mode before its last rounding
	Sigma       *float64 `json:"sigma"`             // standard deviation of Got
	Rounds      []string `json:"rounds,omitempty"`  // BF16, F16: what Got, 8 standard deviations less or more, rounds to
	Want        string   `json:"want,omitempty"`    // the golden's at Index
	Limit       *float64 `json:"limit"`             // of z, or of rel_rms
	Limits      *Limits  `json:"limits"`            // all of them
	Margin      *float64 `json:"margin"`            // the largest metric/limit; at most 1 passes
	Pattern     *Pattern `json:"pattern,omitempty"` // of the first check that failed by its elements

	// ProbeRows are, of a probe, the rows of the layer's post_attention_layernorm.output, as
	// [tokens, hidden_size], that the expert was run on.
	ProbeRows []int `json:"probe_rows,omitempty"`

	// Dead: of a probe that passed, that all its goldens are less than DeadOutput.
	Dead bool `json:"dead,omitempty"`

	// Blind: the bounds are too wide to say anything.
	Blind bool `json:"-"`
}

// DeadOutput is 2⁻⁶⁴: an expert with smaller outputs changes no stream of numbers above 2⁻⁴⁰, in any dtype.
const DeadOutput = 0x1p-64

// Fits reports whether shapes, patterns and loads go together as those of a run do: what is written of r relies on it.
func (r *Report) Fits() bool {
	for _, c := range r.Checks {
		if c.Limits != nil && c.Limits.Z > 0 && len(c.Shape) == 0 {
			return false
		}
		if p := c.Pattern; p != nil && !rectangular(p.Cells) {
			return false
		}
	}
	var loads [][]int
	for _, l := range r.Routing.Layers {
		loads = append(loads, l.Load)
	}
	return loads == nil || rectangular(loads)
}

// rectangular reports whether there are rows, all with as many cells, and at least one.
func rectangular[T any](rows [][]T) bool {
	return len(rows) > 0 && len(rows[0]) > 0 &&
		!slices.ContainsFunc(rows, func(row []T) bool { return len(row) != len(rows[0]) })
}

// Skip makes c a skipped check with a status.
func (c *Check) Skip(s Status) { c.Verdict, c.Status, c.Reason, c.Rows = Skipped, s, s.Words(), "" }

// Stage is what the tensor's name says.
func (c *Check) Stage() pack.Stage { return pack.Parse(c.Tensor) }

// Layer is the number of the stage's layer, -1 outside the layers.
func (c *Check) Layer() int { return c.Stage().Layer }

// Pattern is where in a golden tensor of shape [rows, width] the residual lies, in cells of
// as many rows and columns as keep them few.
type Pattern struct {
	RowStep    int `json:"row_step"`    // rows of a cell; the last cells may have fewer
	ColumnStep int `json:"column_step"` // columns of a cell; likewise
	// Unit is what Cells are in: "σ", standard deviations of the rounding errors that the
	// analysis expects, or "RMS of the golden".
	Unit string `json:"unit"`
	// Cells are the largest distances, by rows of cells; null is an infinite one: a value
	// that must be equal and is not, or is not finite.
	Cells [][]*float64 `json:"cells"`
	// Padding are the rows of cells of which no row was compared: those of padding.
	Padding []int `json:"padding,omitempty"`
	// Worst is the row and the column of the cell with the largest distance.
	Worst [2]int `json:"worst"`
	// Seq is the number of rows of a sequence, if there are several sequences.
	Seq int `json:"seq,omitempty"`
}

// Gap is the distance between the scores of our choice and of the golden's choice.
type Gap struct {
	Of     string   `json:"of"`     // "expert" or, where its group was not chosen, "group"
	Golden int      `json:"golden"` // number of the golden's
	Ours   int      `json:"ours"`   // number of that in whose place it is
	Score  float64  `json:"score"`  // of ours, less that of the golden's
	Z      *float64 `json:"z"`      // the same in standard deviations; null if those are 0
}

// Coverage says what took part in a checked stage.
type Coverage struct {
	GoldenTensors    int      `json:"golden_tensors"`    // of the pack, beside its inputs
	GoldenChecked    int      `json:"golden_checked"`    // of these, held to a limit
	GoldenUnchecked  []string `json:"golden_unchecked"`  // of these, measured only
	Weights          int      `json:"weights"`           // that the config implies, but those of OutsideForward
	WeightsChecked   int      `json:"weights_checked"`   // that took part in a checked stage
	WeightsUnchecked []string `json:"weights_unchecked"` // beside those of experts not reached
	WeightsUnpinned  []string `json:"weights_unpinned"`  // that decide choices of experts which are the same without them
	Padding          int      `json:"padding"`           // tokens of padding, whose rows were not compared
	EmbeddingRows    int      `json:"embedding_rows"`    // of embed_tokens, that tokens other than padding read
	VocabSize        int      `json:"vocab_size"`        // rows that there are
	// of Settings.Tried, keys that no compared stage tells from half as much, or from twice as much
	Untold []Unexercised `json:"keys_untold"`
	// that prediction layers have of it; no other rows of these are read
	EmbeddingCopies int `json:"embedding_copies"`
	Experts         int `json:"experts"`         // routed, over all layers
	ExpertsReached  int `json:"experts_reached"` // of these, whose output shows for some token
	// of the others, those that a probe ran on rows of their layer's input
	ExpertsProbed int            `json:"experts_probed"`
	Unreached     []LayerExperts `json:"experts_unreached"` // experts that neither a token nor a probe reached
	// OutsideForward counts the weights of multi-token prediction layers that the
	// checkpoint holds and that were not run, as the pack has no stages of them. The logits
	// do not depend on them, and they were not verified.
	OutsideForward int `json:"outside_forward"`
	// Beside says which tensors are not the language model's: see weights.Beside.
	Beside string `json:"beside,omitempty"`
}

// LayerExperts are experts of one layer.
type LayerExperts struct {
	Layer   string `json:"layer"`   // such as "model.layers.3"
	Experts []int  `json:"experts"` // ascending
}

// Routing counts the choices of experts.
type Routing struct {
	Choices    int `json:"choices"`    // tokens × layers × k, without padding
	Pinned     int `json:"pinned"`     // of these, that no rounding could change
	ExactTies  int `json:"exact_ties"` // other experts, whose scores are equal to the bit
	NearTies   int `json:"near_ties"`  // other experts, whose scores are within 8 standard deviations of ours
	Mismatches int `json:"mismatches"` // other experts, for no such reason
	// Biases say how far the choices pin each layer's e_score_correction_bias.
	Biases []BiasPins     `json:"biases"`
	Layers []LayerRouting `json:"layers"` // those whose choices were compared, in model order
	// Rounded counts the choices that are not those of a router in float32, where an engine rounds the router's logits to 16
	// bits; absent where none does.
	Rounded *int `json:"rounded,omitempty"`
	// Keys counts the choices of keys by indexers; absent if none was compared.
	Keys *KeyChoices `json:"keys,omitempty"`
}

// KeyChoices counts the keys that indexers chose for queries, without padding. ReLU makes many scores
// exactly 0, so that a choice often falls among equal ones.
type KeyChoices struct {
	Queries    int `json:"queries"`    // that see more than index_topk keys, of all indexers
	TiedCuts   int `json:"tied_cuts"`  // of these, whose least score chosen equals the best that was not
	ZeroCuts   int `json:"zero_cuts"`  // of these, whose score is 0
	ExactTies  int `json:"exact_ties"` // other keys, whose scores are equal to the bit
	NearTies   int `json:"near_ties"`  // other keys, whose scores are within 8 standard deviations of ours
	Mismatches int `json:"mismatches"` // other keys, for no such reason
}

// Add adds the counts of an indexer.
func (k *KeyChoices) Add(one *KeyChoices) {
	k.Queries, k.TiedCuts, k.ZeroCuts = k.Queries+one.Queries, k.TiedCuts+one.TiedCuts, k.ZeroCuts+one.ZeroCuts
	k.ExactTies, k.NearTies, k.Mismatches = k.ExactTies+one.ExactTies, k.NearTies+one.NearTies, k.Mismatches+one.Mismatches
}

// LayerRouting counts the choices of one layer, as Routing does of all.
type LayerRouting struct {
	Layer      string `json:"layer"`      // such as "model.layers.3"
	Choices    int    `json:"choices"`    // of Routing
	Same       int    `json:"same"`       // of these, experts that we choose, too
	Pinned     int    `json:"pinned"`     // of Routing, as those below
	ExactTies  int    `json:"exact_ties"` // of Routing
	NearTies   int    `json:"near_ties"`  // of Routing
	Mismatches int    `json:"mismatches"` // of Routing
	Load       []int  `json:"load"`       // how often the golden chose each routed expert, without padding
	// TableRows counts the rows of tid2eid that the tokens read, where it lists the experts of each token id.
	TableRows int  `json:"table_rows,omitempty"`
	Rounded   *int `json:"rounded,omitempty"` // of Routing
	// the choices are compared with those of the trace that is replayed: Mismatches are others, and Same are the router's own
	Replayed bool `json:"replayed,omitempty"`

	Wrong map[int]bool `json:"-"` // tokens with a choice that rounding does not explain
	// experts that the gate chooses in float32, if the engine rounds its logits or scores to 16 bits [tokens × k]
	InFloat32 []int `json:"-"`
	Own       []int `json:"-"` // of Replayed: experts that the router chooses by itself [tokens × k]
}

// Replay is a trace whose choices of experts are replayed.
type Replay struct {
	Golden   string `json:"golden"`   // its path
	Manifest string `json:"manifest"` // hash of its manifest.json
}

// BiasPins is how far the choices of a layer pin its e_score_correction_bias: by how much
// the bias of one expert could move, towards the nearer side, without another choice.
type BiasPins struct {
	Layer  string  `json:"layer"`  // such as "model.layers.3"
	Median float64 `json:"median"` // over the experts that some choice pins
	Widest float64 `json:"widest"` // of these
	Expert int     `json:"expert"` // that has it
	Free   []int   `json:"free"`   // experts whose bias no choice pins on either side
	// Same lists the other biases with which all choices are the golden's: WithoutBias, TwiceTheBias
	Same []string `json:"same"`
}

// Other biases of a layer.
const (
	WithoutBias  = "zero"
	TwiceTheBias = "doubled"
)

// Rules are those in force where references differ: see config.Rules.
type Rules struct {
	Reference     config.Reference `json:"reference"`      // whose
	NormaliseTopK bool             `json:"normalise_topk"` // top-k weights are divided by their sum
	TopKScale     float64          `json:"topk_scale"`     // and multiplied by this
	MoELayerFreq  int              `json:"moe_layer_freq"` // 1 if ignored
	// IgnoresMoELayerFreq: every layer from first_k_dense_replace on has experts.
	IgnoresMoELayerFreq bool `json:"ignores_moe_layer_freq"`
	// Official says what the official inference code does otherwise, where that is known.
	Official string `json:"official,omitempty"`
}

// Settings are the keys of config.json that the verdict does not speak of.
type Settings struct {
	Overridden  []Override    `json:"overridden"`  // keys that the reference ran with otherwise
	Unexercised []Unexercised `json:"unexercised"` // keys that change nothing on the pack's input
	// keys that other values are tried of: half and twice as much; see Place
	Tried []string `json:"tried"`
	// keys whose values are not those of the config.json that the pack was recorded from
	Differ []pack.Difference `json:"differ"`
	// config.json is another than that one, by its hash, and the pack does not hold it
	Unknown bool `json:"unknown"`
	// says that the pack was recorded from another checkpoint or config; empty if nothing shows that
	Origin string `json:"origin"`
}

// Override is a key of config.json whose value is not what the reference ran with.
type Override struct {
	Key        string `json:"key"`        // of config.json
	Checkpoint string `json:"checkpoint"` // its value there, as JSON; "not set" without one
	Reference  string `json:"reference"`  // what the reference ran with
	Training   bool   `json:"training"`   // concerns training alone
}

// Unexercised is a key of config.json that the pack proves nothing of.
type Unexercised struct {
	Key string `json:"key"` // of config.json
	Why string `json:"why"` // the pack does not exercise it
}

// Golden says what the pack was made from.
type Golden struct {
	Reference       pack.Reference            `json:"reference"`        // the Python that ran
	Mode            string                    `json:"mode"`             // "eval" or "train"
	ConfigOverrides map[string]jsontext.Value `json:"config_overrides"` // config.json keys that the reference ran with
	ComputeDType    string                    `json:"compute_dtype"`    // as torch spells it
	// what an engine declares of how it computes, which is reproduced; absent of other references
	Arithmetic *pack.Arithmetic `json:"arithmetic,omitempty"`
	// what an engine does not declare and the numbers show, which is reproduced, too; absent if nothing is
	Observed *pack.Arithmetic `json:"observed,omitempty"`
	// how a GPU rounded the operands of float32 products, read off the numbers; absent if it did not
	Products string `json:"products,omitempty"`
	// how an engine in a 16-bit dtype, or compiled or replaced code of a reference, rounds where that is not as
	// HuggingFace's eager classes do; read off the numbers
	Recognised []Recognised `json:"recognised,omitempty"`
	// tensors that an engine dumped and that are no part of the trace; absent of packs
	Unread []pack.Unread `json:"unread,omitempty"`
	// why it proves less on purpose; empty if it does not
	Partial    string            `json:"partial"`
	Absent     pack.Absent       `json:"absent"`          // what it says it has not
	Batch      int               `json:"batch"`           // sequences
	Seq        int               `json:"seq"`             // tokens of each
	Steps      *pack.StepCounts  `json:"steps,omitempty"` // of the engine that computed the rows; absent if the pack does not say
	Checkpoint map[string]string `json:"checkpoint"`      // file -> hash
	// hash of manifest.json, which has those of all other files
	Manifest string `json:"manifest"`
}

// Recognised is how an engine, or fused code of a reference, rounds in operations of a kind.
type Recognised struct {
	Kind string            `json:"kind"` // such as "post-add-norm"
	Ways map[string]string `json:"ways"` // by operation, as manifests declare them; "unknown" if no known way explains the numbers
	// elements that no known way explains: wrong ones, or those of a way that is not known
	Missed int `json:"missed"`
	// elements that the ways explain and the next best ways do not; 0 if these predict the same numbers
	Alone int `json:"alone"`
	// these next best ways, likewise; absent if all others predict the same numbers
	Rival map[string]string `json:"rival,omitempty"`
	// the ways explain all elements with the config that the trace holds, not with the checkpoint's
	WithRecorded bool `json:"with_recorded_config,omitempty"`
	// the ways of layers that round otherwise, by the layer's number; absent if there are none
	Layers map[string]map[string]string `json:"layers,omitempty"`
	// the ways of the rows of decode steps, if these are others
	Decode map[string]string `json:"decode,omitempty"`
}

// Mode is how a run feeds its stages.
type Mode string

const (
	// Local feeds every stage the golden's own input: no error travels, and the
	// first stage that fails is the one at fault.
	Local Mode = "local"
	// Chained runs end to end and checks the layers' outputs and the logits. The
	// golden's choice of experts is used throughout.
	Chained Mode = "chained"
)

// Limits are what the measures of a check may be at most. Zero is no limit.
type Limits struct {
	Z           float64 `json:"z,omitzero"`            // of Check.Z: 8
	RMSZ        float64 `json:"rms_z,omitzero"`        // of Check.RMSZ: 1.12 + 3.5/√elements of distinct rows
	RowZ        float64 `json:"row_z,omitzero"`        // of Check.RowZ: 3
	ColumnZ     float64 `json:"column_z,omitzero"`     // of Check.ColumnZ: 1.12 + 3.5/√distinct rows
	NeuronZ     float64 `json:"neuron_z,omitzero"`     // of Check.NeuronZ: 6
	RoundingRMS float64 `json:"rounding_rms,omitzero"` // of Check.RoundingRMS: 1.3
	Slope       float64 `json:"slope,omitzero"`        // of Check.Slope: 6
	RelRMS      float64 `json:"rel_rms,omitzero"`      // of Metrics.RelRMS
	RowRMS      float64 `json:"row_rms,omitzero"`      // of Metrics.RowRMS
	MaxRMS      float64 `json:"max_rms,omitzero"`      // of Metrics.MaxRMS
	// Factor is the user's: on standard deviations, or on limits of Metrics. 0 if the
	// limits are the tool's own.
	Factor float64 `json:"factor,omitzero"`
	From   string  `json:"from"` // why these
}

// Measure is a number of a check that is beyond its limit.
type Measure struct {
	Name  string   `json:"measure"` // its key in the check, such as "neuron_z"; "choices" of a choice of experts
	Value *float64 `json:"value"`   // null if it is infinite
	Limit float64  `json:"limit"`   // the most that passes
}
