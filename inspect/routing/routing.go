package routing

// Which experts tokens are routed to: the report.

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/text"
)

// Report is which routed experts the gates chose for some tokens, in numbers. They hold for
// these tokens: an expert that none of them reached is not one that no token reaches.
type Report struct {
	Path      string           `json:"path"`                // of the golden pack, the logs or the checkpoint, as it was given
	Source    Source           `json:"source"`              // where the choices are from
	Reference config.Reference `json:"reference,omitempty"` // FromForward: whose rules the pass followed
	Tokens    int              `json:"tokens"`              // the most that the numbers of a layer are of
	Sequences int              `json:"sequences"`           // that the tokens are of; FromLogs: forward passes, the most of a layer
	Padding   int              `json:"padding"`             // tokens of the input that are padding, and in no number
	Experts   int              `json:"n_routed_experts"`    // N of each layer
	PerToken  int              `json:"num_experts_per_tok"` // k, experts that a gate chooses for a token
	Layers    []Layer          `json:"layers"`              // the selected ones, ascending
	Missing   []string         `json:"missing"`             // what cannot be said, and why

	by Level
}

// Source says where the choices of a Report are from.
type Source string

// The sources.
const (
	FromGolden  Source = "golden"  // what the reference recorded in a golden pack
	FromForward Source = "forward" // our own forward pass, in float32
	FromLogs    Source = "logs"    // logs in the form of ESFT
)

// Layer is the routing of one layer. T is Tokens; p_e = n_e / (T·k) is the share of the
// choices that fell on expert e, n_e tokens; "uniform" is what to expect if every token chose k
// of the N experts by lot.
type Layer struct {
	Layer            int      `json:"layer"`             // number in the model; from num_hidden_layers on, of a prediction layer
	Tokens           int      `json:"tokens"`            // that its gate routed, padding left out
	Entropy          float64  `json:"entropy"`           // -Σ p_e·ln p_e, in nats, to 12 decimals
	MaxEntropy       float64  `json:"max_entropy"`       // ln N, if all experts have equal shares; to 12 decimals
	MaxVio           float64  `json:"maxvio"`            // max_e n_e / (T·k/N) - 1, arXiv 2408.15664
	CV               float64  `json:"cv"`                // √(Σ (n_e - T·k/N)² / N) / (T·k/N), the loads' coefficient of variation
	CVUniform        float64  `json:"cv_uniform"`        // √((1 - k/N) / (T·k/N)), the same of choices by lot
	Unreached        []int    `json:"unreached"`         // experts that none of these tokens was routed to, ascending
	UnreachedUniform float64  `json:"unreached_uniform"` // N·(1 - k/N)^T, how many of choices by lot; to 12 decimals
	Mass             *float64 `json:"mass"`              // Σ of all gate weights / T; null without gate weights
	Margins          *Margins `json:"margins"`           // null without selection scores
	Experts          []Expert `json:"experts"`           // the selected ones, ascending
	Pairs            []Pair   `json:"pairs"`             // of selected experts; by pair all that share a token, else the MaxPairs furthest above Expected
}

// Expert is one expert's part of a layer's routing.
type Expert struct {
	Expert     int      `json:"expert"`      // id
	Tokens     int      `json:"tokens"`      // n_e: tokens that were routed to it
	Share      float64  `json:"share"`       // p_e = n_e / (T·k): ESFT's token score
	Load       float64  `json:"load"`        // n_e / (T·k/N): 1 is its fair share
	Mass       *float64 `json:"mass"`        // Σ of its gate weights; null without gate weights
	MeanWeight *float64 `json:"mean_weight"` // Mass / T: ESFT's gate score
}

// Margins are how near a layer's choices were: of each token the lowest selection score of a
// chosen expert less the highest of one that was not chosen. Selection scores are what the gate
// chooses by, with the bias and the mask of groups; -∞ is no score.
type Margins struct {
	Tokens int      `json:"tokens"` // that have one: some are left no other expert by their groups
	Min    *float64 `json:"min"`    // the smallest; null, as are the quantiles, if no token has one
	Q01    *float64 `json:"q01"`    // quantiles, as QuantileValue has them
	Q10    *float64 `json:"q10"`
	Median *float64 `json:"median"`
	Ties   int      `json:"ties"`  // tokens whose margin is 0: the scores do not decide
	Below  int      `json:"below"` // tokens whose chosen experts are not those with the highest of these scores
}

// Pair is two experts of a layer that tokens were routed to together.
type Pair struct {
	Experts  [2]int  `json:"experts"`  // ids, ascending
	Tokens   int     `json:"tokens"`   // n_ij: tokens that chose both
	Expected float64 `json:"expected"` // n_i·n_j / T, if the two were chosen independently
	Second   float64 `json:"p_second"` // n_ij / n_i: the share of the first's tokens that chose the second too
	First    float64 `json:"p_first"`  // n_ij / n_j
}

// maxRouted is how many experts a layer may have: of each pair a number is in memory.
const maxRouted = 4096

// MaxPairs is how many pairs of a layer are listed unless all are wanted.
const MaxPairs = 8

// Level says what a row of a Report's sheet is.
type Level string

// The levels.
const (
	ByLayer  Level = "layer"  // each layer
	ByExpert Level = "expert" // each expert
	ByPair   Level = "pair"   // each two experts of a layer that share a token
)

// Options says what of a routing is reported; the zero value is a row for each layer.
type Options struct {
	Layers  text.Spans // only these; empty is all that route
	Experts text.Spans // rows and pairs of these alone; the numbers of a layer are of all
	By      Level      // "" is ByLayer
}

// newReport returns a report without layers.
func newReport(path string, source Source, o Options) *Report {
	if o.By == "" {
		o.By = ByLayer
	}
	return &Report{Path: path, Source: source, Layers: []Layer{}, Missing: []string{}, by: o.By}
}

// check says what of the options somebody has not, who has layers and experts.
func (o *Options) check(who string, layers []int, experts int) error {
	there := map[int]bool{}
	for _, l := range layers {
		there[l] = true
	}
	numbers := map[int]bool{}
	for e := range experts {
		numbers[e] = true
	}
	if experts > maxRouted {
		return fmt.Errorf("%s in a layer: at most %s are counted", text.Plural(experts, "expert"), text.Grouped(maxRouted))
	}
	return errors.Join(inspect.Absent(who, "layers", o.Layers, there), inspect.Absent(who, "experts", o.Experts, numbers))
}

// Sheet is a row per layer, expert or pair.
func (r *Report) Sheet() *text.Sheet {
	switch r.by {
	case ByExpert:
		return r.expertSheet()
	case ByPair:
		return r.pairSheet()
	}
	s := text.NewSheet(">layer", ">tokens", ">entropy", ">max_entropy", ">maxvio", ">cv", ">cv_uniform", ">unreached", ">unreached_uniform",
		">mass", ">margin_min", ">margin_q01", ">margin_median", ">ties", ">below")
	for _, l := range r.Layers {
		s.Add(append([]text.Cell{text.Whole(l.Layer), text.Whole(l.Tokens), text.Real(&l.Entropy), text.Real(&l.MaxEntropy), text.Real(&l.MaxVio),
			text.Real(&l.CV), text.Real(&l.CVUniform), text.Whole(len(l.Unreached)), text.Real(&l.UnreachedUniform), text.Real(l.Mass)}, l.Margins.cells()...)...)
	}
	return s
}

func (m *Margins) cells() []text.Cell {
	if m == nil {
		none := text.Real(nil)
		return []text.Cell{none, none, none, none, none}
	}
	return []text.Cell{text.Real(m.Min), text.Real(m.Q01), text.Real(m.Median), text.Whole(m.Ties), text.Whole(m.Below)}
}

func (r *Report) expertSheet() *text.Sheet {
	s := text.NewSheet(">layer", ">expert", ">tokens", ">share", ">load", ">mass", ">mean_weight")
	for _, l := range r.Layers {
		for _, e := range l.Experts {
			s.Add(text.Whole(l.Layer), text.Whole(e.Expert), text.Whole(e.Tokens), text.Real(&e.Share), text.Real(&e.Load), text.Real(e.Mass), text.Real(e.MeanWeight))
		}
	}
	return s
}

func (r *Report) pairSheet() *text.Sheet {
	s := text.NewSheet(">layer", ">expert", ">with", ">tokens", ">expected", ">p_second", ">p_first")
	for _, l := range r.Layers {
		for _, p := range l.Pairs {
			s.Add(text.Whole(l.Layer), text.Whole(p.Experts[0]), text.Whole(p.Experts[1]), text.Whole(p.Tokens), text.Real(&p.Expected), text.Real(&p.Second), text.Real(&p.First))
		}
	}
	return s
}

// WriteText writes what the numbers are of, the sheet, and what is not in it.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Title())
	if err := r.Sheet().WriteAs(&b, text.AsTable); err != nil {
		return err
	}
	unreached := false
	for _, l := range r.Layers {
		if len(l.Unreached) > 0 {
			fmt.Fprintf(&b, "model.layers.%d: none of %s reached %s %s\n", l.Layer, text.Plural(l.Tokens, "token"), experts(len(l.Unreached)), text.Ranges(l.Unreached))
			unreached = true
		}
	}
	if unreached {
		b.WriteString("An expert without a token is unreached by these tokens, not dead: other tokens may need it.\n")
	}
	for _, l := range r.Layers {
		if l.Margins != nil && l.Margins.Below > 0 {
			fmt.Fprintf(&b, "model.layers.%d: the scores would choose other experts for %s: rounding decided, or the config is another model's\n", l.Layer, text.Plural(l.Margins.Below, "token"))
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "not said: %s\n", m)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// experts is the word for n of them.
func experts(n int) string {
	if n == 1 {
		return "expert"
	}
	return "experts"
}

// Title says which tokens the numbers hold for, and where they are from.
func (r *Report) Title() string {
	of, in := "as the reference recorded it", "sequence"
	switch r.Source {
	case FromForward:
		of = fmt.Sprintf("of our own forward pass in float32 by the rules of %s code", r.Reference)
	case FromLogs:
		of, in = "as ESFT's logs have it", "line"
	}
	padding := ""
	if r.Padding > 0 {
		padding = fmt.Sprintf(" (%d more are padding, and left out)", r.Padding)
	}
	return fmt.Sprintf("%s: routing of %s in %s%s, %s; %d of %d experts for each token", text.Word(r.Path), r.tokens(), text.Plural(r.Sequences, in), padding, of, r.PerToken, r.Experts)
}

// tokens is how many tokens the numbers of the layers are of.
func (r *Report) tokens() string {
	least := r.Tokens
	for _, l := range r.Layers {
		least = min(least, l.Tokens)
	}
	if least < r.Tokens {
		return text.Grouped(least) + " to " + text.Plural(r.Tokens, "token")
	}
	return text.Plural(r.Tokens, "token")
}

// lack notes what cannot be said of layers.
func (r *Report) lack(layers []int, format string, args ...any) {
	if len(layers) > 0 {
		slices.Sort(layers)
		what := "layers "
		if len(layers) == 1 {
			what = "layer "
		}
		r.Missing = append(r.Missing, what+text.Ranges(layers)+": "+fmt.Sprintf(format, args...))
	}
}
