package routing

// Which experts tokens are routed to: the report.

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model"
	"dsmoe/text"
)

// Report is which routed experts the gates chose for some tokens, in numbers. The numbers hold for these tokens: other
// tokens may reach an expert that none of these reached.
type Report struct {
	Path      string           `json:"path"`                // of the pack or the checkpoint, as the user gave it
	Source    source           `json:"source"`              // where the choices are from
	Reference config.Reference `json:"reference,omitempty"` // of a forward pass: whose rules the pass followed
	Tokens    int              `json:"tokens"`              // the most of a layer
	Sequences int              `json:"sequences"`           // of the tokens
	Padding   int              `json:"padding"`             // tokens of padding, which are not counted
	Experts   int              `json:"n_routed_experts"`    // N of each layer
	PerToken  int              `json:"num_experts_per_tok"` // k, experts that a gate chooses for a token
	Layers    []Layer          `json:"layers"`              // the selected ones, ascending
	Missing   []string         `json:"missing"`             // numbers that are not shown, and why

	by inspect.Grouping
}

// source says where the choices of a Report are from.
type source string

// The sources.
const (
	fromGolden  source = "golden"  // what the reference recorded in a golden pack
	fromForward source = "forward" // our own forward pass, in float32
)

// Layer is the routing of one layer. T is Tokens, n_e the tokens that chose expert e, and p_e = n_e / (T·k) their share
// of all choices. "uniform" is the expectation if every token chose k of the N experts by lot.
type Layer struct {
	Layer            int      `json:"layer"`             // in the model; from num_hidden_layers on a prediction layer
	Tokens           int      `json:"tokens"`            // that its gate routed, padding left out
	Entropy          float64  `json:"entropy"`           // -Σ p_e·ln p_e, in nats, to 12 decimals
	MaxEntropy       float64  `json:"max_entropy"`       // ln N, if all experts have equal shares; to 12 decimals
	MaxVio           float64  `json:"maxvio"`            // max_e n_e / (T·k/N) - 1, arXiv 2408.15664
	CV               float64  `json:"cv"`                // √(Σ (n_e - T·k/N)² / N) / (T·k/N), of the loads
	CVUniform        float64  `json:"cv_uniform"`        // √((1 - k/N) / (T·k/N)), the same of choices by lot
	Unreached        []int    `json:"unreached"`         // experts that none of these tokens was routed to, ascending
	UnreachedUniform float64  `json:"unreached_uniform"` // N·(1 - k/N)^T, how many of choices by lot; to 12 decimals
	Mass             *float64 `json:"mass"`              // Σ of all gate weights / T; null without gate weights
	Margins          *margins `json:"margins"`           // null without selection scores
	Experts          []expert `json:"experts"`           // the selected ones, ascending
	Pairs            []pair   `json:"pairs"`             // of selected experts that share a token: maxPairs, or ByPair all

	blocks *blocks // for Compare; nil unless asked for
}

// expert is one expert's part of a layer's routing.
type expert struct {
	Expert     int      `json:"expert"`      // id
	Tokens     int      `json:"tokens"`      // n_e: tokens that were routed to it
	Share      float64  `json:"share"`       // p_e = n_e / (T·k): ESFT's token score
	Load       float64  `json:"load"`        // n_e / (T·k/N): 1 is its fair share
	Mass       *float64 `json:"mass"`        // Σ of its gate weights; null without gate weights
	MeanWeight *float64 `json:"mean_weight"` // Mass / T: ESFT's gate score
}

// margins are how near a layer's choices were: of each token the lowest selection score of a
// chosen expert less the highest of one that was not chosen. Selection scores are what the gate
// chooses by, with the bias and the mask of groups; -∞ is no score.
type margins struct {
	Tokens int      `json:"tokens"` // that have one: some are left no other expert by their groups
	Min    *float64 `json:"min"`    // the smallest; null, as are the quantiles, if no token has one
	Q01    *float64 `json:"q01"`    // quantiles, as QuantileValue has them
	Q10    *float64 `json:"q10"`
	Median *float64 `json:"median"`
	Ties   int      `json:"ties"`  // tokens whose margin is 0: the scores do not decide
	Below  int      `json:"below"` // tokens whose chosen experts are not those with the highest of these scores
}

// pair is two experts of a layer that tokens were routed to together.
type pair struct {
	Experts  [2]int  `json:"experts"`  // ids, ascending
	Tokens   int     `json:"tokens"`   // n_ij: tokens that chose both
	Expected float64 `json:"expected"` // n_i·n_j / T, if the two were chosen independently
	Second   float64 `json:"p_second"` // n_ij / n_i: the share of the first's tokens that chose the second too
	First    float64 `json:"p_first"`  // n_ij / n_j
}

// maxRouted is how many experts a layer may have: of each pair a number is in memory.
const maxRouted = 4096

// maxPairs is how many pairs of a layer are listed unless all are wanted.
const maxPairs = 8

// Options says what of a routing is reported; the zero value is a row for each layer.
type Options struct {
	Layers  text.Spans       // only these; empty is all that route
	Experts text.Spans       // rows and pairs of these alone; the numbers of a layer are of all
	By      inspect.Grouping // a row for each layer, also "", expert or pair
	Blocks  bool             // count blocks of tokens too, for Compare; OfForward does

	// Choices is called with each choice that is counted, layer by layer, in the order of the tokens, by one goroutine;
	// may be nil.
	Choices func(Choice) error
}

// newReport returns a report without layers.
func newReport(path string, source source, o Options) *Report {
	if o.By == "" {
		o.By = inspect.ByLayer
	}
	return &Report{Path: path, Source: source, Layers: []Layer{}, Missing: []string{}, by: o.By}
}

// check returns an error if who, with these layers and experts, lacks some that are selected.
func (o *Options) check(who string, layers []int, experts int) error {
	if experts > maxRouted {
		return fmt.Errorf("%s in a layer: at most %s are counted", text.Plural(experts, "expert"), text.Grouped(maxRouted))
	}
	routed, numbers := map[int]bool{}, map[int]bool{}
	for _, l := range layers {
		routed[l] = true
	}
	for e := range experts {
		numbers[e] = true
	}
	return errors.Join(o.Layers.Check(who, "layers", routed), o.Experts.Check(who, "experts", numbers))
}

// countTokens notes how many tokens an input has. An input of padding alone is an error.
func (r *Report) countTokens(in *model.Input) error {
	r.Sequences = in.Batch
	for _, m := range in.AttentionMask {
		r.Padding += 1 - m
	}
	if r.Tokens = len(in.InputIDs) - r.Padding; r.Tokens == 0 {
		return fmt.Errorf("%s: the input has no token but padding", text.Quote(r.Path))
	}
	return nil
}

// lack notes what cannot be shown of layers.
func (r *Report) lack(layers []int, format string, args ...any) {
	if len(layers) > 0 {
		slices.Sort(layers)
		r.Missing = append(r.Missing, numbered("layer", layers)+": "+fmt.Sprintf(format, args...))
	}
}

// numbered returns "layer 3", "layers 3-5".
func numbered(what string, numbers []int) string {
	if len(numbers) > 1 {
		what += "s"
	}
	return what + " " + text.Ranges(numbers)
}

// Sheet is a row per layer, expert or pair.
func (r *Report) Sheet() *text.Sheet {
	switch r.by {
	case inspect.ByExpert:
		s := text.NewSheet(">layer", ">expert", ">tokens", ">share", ">load", ">mass", ">mean_weight")
		for _, l := range r.Layers {
			for _, e := range l.Experts {
				s.Row(l.Layer, e.Expert, e.Tokens, e.Share, e.Load, e.Mass, e.MeanWeight)
			}
		}
		return s
	case inspect.ByPair:
		s := text.NewSheet(">layer", ">expert", ">with", ">tokens", ">expected", ">p_second", ">p_first")
		for _, l := range r.Layers {
			for _, p := range l.Pairs {
				s.Row(l.Layer, p.Experts[0], p.Experts[1], p.Tokens, p.Expected, p.Second, p.First)
			}
		}
		return s
	}
	s := text.NewSheet(">layer", ">tokens", ">entropy", ">max_entropy", ">maxvio", ">cv", ">cv_uniform", ">unreached",
		">unreached_uniform",
		">mass", ">margin_min", ">margin_q01", ">margin_median", ">ties", ">below")
	for _, l := range r.Layers {
		margins := slices.Repeat([]text.Cell{text.Real(nil)}, 5)
		if m := l.Margins; m != nil {
			margins = []text.Cell{text.Real(m.Min), text.Real(m.Q01), text.Real(m.Median), text.Whole(m.Ties),
				text.Whole(m.Below)}
		}
		s.Row(l.Layer, l.Tokens, l.Entropy, l.MaxEntropy, l.MaxVio, l.CV, l.CVUniform, len(l.Unreached), l.UnreachedUniform,
			l.Mass, margins)
	}
	return s
}

// WriteText writes the tokens that the numbers hold for, the sheet, and the numbers that are missing.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintln(w, r.Title())
	err := r.WriteNumbers(w)
	for _, m := range r.Missing {
		fmt.Fprintln(w, "not shown: "+m)
	}
	return err
}

// WriteNumbers writes the sheet, and what is odd about its numbers.
func (r *Report) WriteNumbers(w io.Writer) error {
	var lines []string
	for _, l := range r.Layers {
		if len(l.Unreached) > 0 {
			lines = append(lines, fmt.Sprintf("model.layers.%d: none of %s reached %s", l.Layer, text.Plural(l.Tokens, "token"),
				numbered("expert", l.Unreached)))
		}
	}
	if lines != nil {
		lines = append(lines, "An expert without a token is unreached by these tokens, not dead: other tokens may need it.")
	}
	for _, l := range r.Layers {
		if l.Margins != nil && l.Margins.Below > 0 {
			lines = append(lines, fmt.Sprintf("model.layers.%d: the scores would choose other experts for %s: "+
				"rounding decided, or the config is another model's", l.Layer, text.Plural(l.Margins.Below, "token")))
		}
	}
	return inspect.WriteSheet(w, r.Sheet(), lines, nil)
}

// Title says which tokens the numbers hold for, and where they are from.
func (r *Report) Title() string {
	source := "as the reference recorded it"
	if r.Source == fromForward {
		source = fmt.Sprintf("of our own forward pass in float32 by the rules of %s code", r.Reference)
	}
	padding := ""
	if r.Padding > 0 {
		padding = fmt.Sprintf(" (%d more are padding, and left out)", r.Padding)
	}
	least, tokens := r.Tokens, text.Plural(r.Tokens, "token")
	for _, l := range r.Layers {
		least = min(least, l.Tokens)
	}
	if least < r.Tokens {
		tokens = text.Grouped(least) + " to " + tokens
	}
	return fmt.Sprintf("%s: routing of %s in %s%s, %s; %d of %d experts for each token", text.Word(r.Path), tokens,
		text.Plural(r.Sequences, "sequence"), padding, source, r.PerToken, r.Experts)
}
