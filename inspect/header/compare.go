package header

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/count"
	"dsmoe/text"
)

// The layers that Compare knows by name.
const (
	Top2   = "top2"   // the conventional top-K layer, K = 2 in the paper
	Fine   = "fine"   // after fine-grained segmentation
	Shared = "shared" // and after shared expert isolation: DeepSeekMoE
)

// Comparison is the DeepSeekMoE paper's argument in numbers: an MoE layer as top-K
// of N experts, split into mN, with K_s of them shared, each with the same expert
// parameters and compute.
type Comparison struct {
	Path         string `json:"path,omitempty"`        // the config; absent if the layer was given by its numbers
	M            int    `json:"m"`                     // parts that a conventional expert is split into
	Experts      int    `json:"mN"`                    // n_routed_experts + n_shared_experts
	PerToken     int    `json:"mK"`                    // num_experts_per_tok + n_shared_experts
	Shared       int    `json:"K_s"`                   // n_shared_experts
	Hidden       int    `json:"hidden_size,omitempty"` // d; absent if not known
	Intermediate int    `json:"d_ff,omitempty"`        // the width of a conventional expert; absent if not known
	// EqualParameters says that the experts of all Layers have as many parameters. It is
	// false if m does not divide mN, and the layer top2 has N rounded down.
	EqualParameters bool `json:"equal_parameters"`
	// EqualCompute says that a token uses as many expert parameters in all Layers. It is
	// false if m does not divide mK, and the layer top2 has K rounded down.
	EqualCompute bool            `json:"equal_compute"`
	Layers       []comparedLayer `json:"layers"` // in the order that was asked for
}

// comparedLayer is one of the layers compared. An FFN is a conventional expert.
type comparedLayer struct {
	Name          string     `json:"name"`                  // top2, fine or shared
	SharedExperts int        `json:"shared_experts"`        // experts that every token uses
	RoutedExperts int        `json:"routed_experts"`        // experts that the gate chooses from, the rows of the router
	ActiveRouted  int        `json:"active_routed_experts"` // experts that it chooses for a token
	WidthDivisor  int        `json:"width_divisor"`         // the experts' width is d_ff divided by it
	ExpertFFNs    float64    `json:"expert_ffns"`           // parameters of all experts, in FFNs
	ActivatedFFNs float64    `json:"activated_ffns"`        // parameters of the experts that a token uses, in FFNs
	Combinations  string     `json:"combinations"`          // C(routed_experts, active_routed_experts), in digits
	Log2          float64    `json:"log2"`                  // of Combinations
	Nonzero       float64    `json:"nonzero"`               // active_routed_experts / routed_experts: of the gates g
	Cost          *layerCost `json:"cost,omitempty"`        // absent if the dimensions are not known
}

// layerCost is the cost of a layer. FLOPs are per token of a forward pass, two per multiply-add.
type layerCost struct {
	Width               int   `json:"width"`                // of one expert: d_ff / m
	ExpertParameters    int64 `json:"expert_parameters"`    // of all experts: each has 3 · d · Width
	ActivatedParameters int64 `json:"activated_parameters"` // of the experts that a token uses
	ExpertFLOPs         int64 `json:"expert_flops"`         // 2 · ActivatedParameters
	RouterParameters    int64 `json:"router_parameters"`    // routed_experts · d
	RouterFLOPs         int64 `json:"router_flops"`         // 2 · RouterParameters
}

// ParseLayers reads the names of layers, separated by commas. All that is wrong with
// them is one error.
func ParseLayers(list string) ([]string, error) {
	names := strings.Split(list, ",")
	var problems []string
	for i, name := range names {
		switch {
		case !slices.Contains([]string{Top2, Fine, Shared}, name):
			problems = append(problems, fmt.Sprintf("%q is not one of %s, %s, %s", name, Top2, Fine, Shared))
		case slices.Contains(names[:i], name):
			problems = append(problems, fmt.Sprintf("%q stands there twice", name))
		}
	}
	if problems != nil {
		return nil, fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	return names, nil
}

// Compare works out the layers of s that names, from ParseLayers, lists. path is the config's; it may be empty.
func Compare(path string, s count.Segmentation, names []string) *Comparison {
	c := &Comparison{Path: path, M: s.M, Experts: s.Experts, PerToken: s.PerToken, Shared: s.Shared,
		Hidden: s.Hidden, Intermediate: s.Intermediate, EqualParameters: true, EqualCompute: true}
	layers := map[string]func() count.PaperLayer{Top2: s.Conventional, Fine: s.FineGrained, Shared: s.SharedIsolated}
	for _, name := range names {
		l := layers[name]()
		n := l.Combinations()
		all, activated := l.FFNs()
		row := comparedLayer{Name: name, SharedExperts: l.Shared, RoutedExperts: l.Routed, ActiveRouted: l.Active,
			WidthDivisor: l.M, ExpertFFNs: all, ActivatedFFNs: activated, Combinations: n.String(), Log2: log2(n),
			Nonzero: l.Nonzero()}
		if l.Width > 0 {
			all, activated := l.ExpertParameters()
			row.Cost = &layerCost{l.Width, all, activated, 2 * activated, l.RouterParameters(),
				2 * l.RouterParameters()}
		}
		c.Layers = append(c.Layers, row)
		c.EqualParameters = c.EqualParameters && row.ExpertFFNs == c.Layers[0].ExpertFFNs
		c.EqualCompute = c.EqualCompute && row.ActivatedFFNs == c.Layers[0].ActivatedFFNs
	}
	return c
}

// Sheet is a row per layer.
func (c *Comparison) Sheet() *text.Sheet {
	s := text.NewSheet("layer", ">shared_experts", ">routed_experts", ">active_routed_experts", ">width_divisor", ">expert_ffns",
		">activated_ffns", ">combinations", ">log2", ">nonzero")
	for _, x := range c.Layers {
		s.Row(x.Name, x.SharedExperts, x.RoutedExperts, x.ActiveRouted, x.WidthDivisor, x.ExpertFFNs, x.ActivatedFFNs,
			x.Combinations, x.Log2, x.Nonzero)
	}
	return s
}

// WriteText writes a row per layer, a second table of costs if the dimensions are
// known, and what is equal and what is not.
func (c *Comparison) WriteText(w io.Writer) error {
	if c.Path != "" {
		fmt.Fprintf(w, "%s: mN = %d experts, mK = %d active, K_s = %d of them shared; split by m = %d\n\n", text.Word(c.Path),
			c.Experts, c.PerToken, c.Shared, c.M)
	} else {
		fmt.Fprintf(w, "N = %d experts, K = %d active, split by m = %d, K_s = %d shared\n\n", c.Experts/c.M, c.PerToken/c.M,
			c.M, c.Shared)
	}
	t := &text.Table{Align: "lrrlrrrrl"}
	t.Add("LAYER", "EXPERTS", "ACTIVE", "WIDTH", "EXPERT PARAMETERS", "ACTIVATED", "ROUTER", "NOT ZERO IN g",
		"SETS OF ROUTED EXPERTS")
	for _, x := range c.Layers {
		width := "d_ff"
		if x.WidthDivisor > 1 {
			width = fmt.Sprintf("d_ff/%d", x.WidthDivisor)
		}
		t.Add(c.label(x), x.count(x.RoutedExperts), x.count(x.ActiveRouted), width, ffns(x.ExpertFFNs), ffns(x.ActivatedFFNs),
			fmt.Sprintf("%d·d", x.RoutedExperts),
			fmt.Sprintf("%d/%d = %.2f %%", x.ActiveRouted, x.RoutedExperts, 100*x.Nonzero),
			fmt.Sprintf("C(%d,%d) = %s2^%.1f", x.RoutedExperts, x.ActiveRouted, digits(x.Combinations), x.Log2))
	}
	t.WriteText(w)
	if c.Layers[0].Cost != nil {
		fmt.Fprintln(w)
		t := &text.Table{Align: "lrrrrrr"}
		t.Add("LAYER", "WIDTH", "EXPERT PARAMETERS", "ACTIVATED", "EXPERT FLOP A TOKEN", "ROUTER PARAMETERS",
			"ROUTER FLOP A TOKEN")
		for _, x := range c.Layers {
			t.Add(c.label(x), strconv.Itoa(x.Cost.Width), text.Grouped(x.Cost.ExpertParameters),
				text.Grouped(x.Cost.ActivatedParameters),
				text.Grouped(x.Cost.ExpertFLOPs), text.Grouped(x.Cost.RouterParameters), text.Grouped(x.Cost.RouterFLOPs))
		}
		t.WriteText(w)
	}
	_, err := fmt.Fprintf(w, "\n%s", c.conclusion())
	return err
}

// label describes a layer: "top-2", "fine-grained, m = 4", "1 shared expert".
func (c *Comparison) label(x comparedLayer) string {
	switch x.Name {
	case Top2:
		return fmt.Sprintf("top-%d", x.ActiveRouted)
	case Fine:
		return fmt.Sprintf("fine-grained, m = %d", c.M)
	}
	return "+ " + text.Plural(x.SharedExperts, "shared expert")
}

// count returns "64", or "1+63" with the shared experts before the routed ones.
func (x comparedLayer) count(routed int) string {
	if x.SharedExperts == 0 {
		return strconv.Itoa(routed)
	}
	return fmt.Sprintf("%d+%d", x.SharedExperts, routed)
}

// ffns returns "16 FFN", "16.5 FFN".
func ffns(n float64) string { return strconv.FormatFloat(n, 'g', 6, 64) + " FFN" }

// conclusion says what is equal in all rows, and what is not.
func (c *Comparison) conclusion() string {
	var b strings.Builder
	b.WriteString("An FFN is a conventional expert: 3·d·d_ff parameters, 2 FLOP each for a token that uses it.\n")
	if c.Path != "" {
		fmt.Fprintf(&b, "The config says how wide an expert is, moe_intermediate_size; m times that is d_ff = %d.\n",
			c.Intermediate)
	}
	if len(c.Layers) > 1 {
		b.WriteString(compared(c.EqualParameters, "expert parameters", "mN", c.Experts, c.M))
		b.WriteString(compared(c.EqualCompute, "activated expert parameters, and so expert FLOP", "mK", c.PerToken, c.M))
		byRouter := func(a, b comparedLayer) int { return a.RoutedExperts - b.RoutedExperts } // its size is not equal
		low, high := slices.MinFunc(c.Layers, byRouter), slices.MaxFunc(c.Layers, byRouter)
		share := func(part, whole int64) string { return fmt.Sprintf("%.3f %%", 100*float64(part)/float64(whole)) }
		if low.RoutedExperts == high.RoutedExperts {
			b.WriteString("Equal in all rows: the router.\n")
		} else {
			fmt.Fprintf(&b, "Not equal: the router, a row of d per routed expert: %d·d to %d·d parameters",
				low.RoutedExperts, high.RoutedExperts)
			if l, h := low.Cost, high.Cost; h != nil {
				fmt.Fprintf(&b, ",\n%s to %s of the experts', and %s to %s of the experts' FLOP a token",
					share(l.RouterParameters, l.ExpertParameters), share(h.RouterParameters, h.ExpertParameters),
					share(l.RouterFLOPs, l.ExpertFLOPs), share(h.RouterFLOPs, h.ExpertFLOPs))
			}
			b.WriteString(".\n")
		}
	}
	fine := slices.IndexFunc(c.Layers, func(x comparedLayer) bool { return x.Name == Fine })
	shared := slices.IndexFunc(c.Layers, func(x comparedLayer) bool { return x.Name == Shared })
	if fine >= 0 && shared >= 0 && c.Shared > 0 {
		exponent := c.Layers[fine].Log2 - c.Layers[shared].Log2
		factor := fmt.Sprintf("2^%.1f", exponent)
		if v := math.Exp2(exponent); v < 1e6 {
			factor = strconv.FormatFloat(v, 'g', 4, 64)
		}
		fmt.Fprintf(&b, "Isolating %s divides the sets of experts by %s.\n", text.Plural(c.Shared, "shared expert"), factor)
	}
	return b.String()
}

// compared says that a quantity is equal, or which division by m was not even.
func compared(equal bool, what, name string, total, m int) string {
	if equal {
		return fmt.Sprintf("Equal in all rows: %s.\n", what)
	}
	return fmt.Sprintf("Not equal: %s, as %s/m = %d/%d is not whole; the conventional layer has %d.\n", what, name,
		total, m, total/m)
}
