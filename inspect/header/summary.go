package header

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model/count"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Summary is a checkpoint at a glance. What the config tells is absent if the
// config cannot be used.
type Summary struct {
	Path       string            `json:"path"`                 // of the checkpoint, as the user gave it
	ModelType  string            `json:"model_type,omitempty"` // the family
	Layers     *layers           `json:"layers,omitempty"`     // the decoder's
	Experts    *experts          `json:"experts,omitempty"`    // absent if the model is dense
	Parameters *Parameters       `json:"parameters,omitempty"` // of the weights that the config implies
	Tensors    int               `json:"tensors"`              // number of tensors that the files hold
	Bytes      int64             `json:"bytes"`                // of all tensors
	DTypes     []dtypeSum        `json:"dtypes"`               // most bytes first
	Files      []fileSum         `json:"files"`                // in reading order
	Problems   int               `json:"problems"`             // findings that are not notes
	Findings   []inspect.Finding `json:"findings"`             // as Audit reports them
}

// layers counts the decoder layers.
type layers struct {
	Total int `json:"total"`                 // num_hidden_layers
	Dense int `json:"dense"`                 // with a DeepseekMLP
	MoE   int `json:"moe"`                   // with a DeepseekMoE: see config.Config.IsMoE
	Bare  int `json:"without_mlp,omitempty"` // with attention or a state space alone
}

// experts is the shape of a mixture.
type experts struct {
	Routed   int `json:"routed"`    // n_routed_experts
	PerToken int `json:"per_token"` // num_experts_per_tok
	Shared   int `json:"shared"`    // n_shared_experts
}

// Parameters counts the weights that the config implies.
type Parameters struct {
	Total     int64 `json:"total"`     // of all modules
	Activated int64 `json:"activated"` // that one token uses, embeddings included
}

// dtypeSum is how much of a checkpoint is of one dtype.
type dtypeSum struct {
	DType   tensor.DType `json:"dtype"`   // of the tensors
	Tensors int          `json:"tensors"` // number of them
	Bytes   int64        `json:"bytes"`   // of all of them
}

// fileSum is one weight file.
type fileSum struct {
	Name    string `json:"name"`    // relative to the checkpoint
	Tensors int    `json:"tensors"` // number of tensors that it holds
	Size    int64  `json:"size"`    // in bytes, header included
}

// Summarize sums up c, and audits it.
func Summarize(c *inspect.Checkpoint) *Summary {
	tensors := inspect.TensorsIn(c.Files)
	s := &Summary{Path: c.Path, Tensors: len(tensors), Bytes: bytesOf(tensors), DTypes: []dtypeSum{},
		Files: []fileSum{}}
	for _, t := range tensors {
		s.DTypes = addDTypes(s.DTypes, []dtypeSum{{t.DType, 1, t.Bytes}})
	}
	sortDTypes(s.DTypes)
	for _, f := range c.Files {
		s.Files = append(s.Files, fileSum{f.Name, len(f.Tensors), f.Size})
	}
	if c.Config != nil {
		s.ModelType = c.Config.ModelType
		s.Layers, s.Experts = layersOf(c.Config), expertsOf(c.Config)
		if c.Config.Attends() == nil || table.FamilyOf(c.Config).Unknown == nil && !c.Config.BlockOnly() {
			sum := count.Modules(c.Config).Sum()
			s.Parameters = &Parameters{sum.Parameters, sum.Activated}
		}
	}
	s.Findings = Audit(c).Findings
	s.Problems = inspect.Problems(s.Findings)
	return s
}

func layersOf(c *config.Config) *layers {
	n := &layers{Total: c.NumHiddenLayers, MoE: len(c.MoELayers())}
	for l := range c.NumHiddenLayers {
		if !c.HasMLP(l) {
			n.Bare++
		}
	}
	n.Dense = n.Total - n.MoE - n.Bare
	return n
}

func expertsOf(c *config.Config) *experts {
	if c.MoE.NRoutedExperts == 0 {
		return nil
	}
	return &experts{c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok, c.MoE.NSharedExperts}
}

// addDTypes adds sums to others, dtype by dtype.
func addDTypes(to, sums []dtypeSum) []dtypeSum {
	for _, s := range sums {
		i := slices.IndexFunc(to, func(t dtypeSum) bool { return t.DType == s.DType })
		if i < 0 {
			i = len(to)
			to = append(to, dtypeSum{DType: s.DType})
		}
		to[i].Tensors += s.Tensors
		to[i].Bytes += s.Bytes
	}
	return to
}

// sortDTypes puts the dtype with most bytes first.
func sortDTypes(sums []dtypeSum) {
	slices.SortFunc(sums, func(a, b dtypeSum) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.DType, b.DType))
	})
}

// summaryLines is how many lines of findings a summary shows.
const summaryLines = 5

// Passes reports whether there are no problems.
func (s *Summary) Passes(inspect.Level) bool { return s.Problems == 0 }

// WriteText writes a line per fact, then the first findings.
func (s *Summary) WriteText(w io.Writer) error {
	fmt.Fprintln(w, text.Word(s.Path))
	t := text.Table{Align: "ll", Indent: "  "}
	t.Add("family", cmp.Or(s.ModelType, "unknown: config.json cannot be used"))
	if s.ModelType != "" {
		t.Add("layers", s.Layers.String())
		t.Add("experts", s.Experts.String())
		if s.Parameters != nil {
			t.Add("parameters", s.Parameters.String())
		}
	}
	size := int64(0)
	for _, f := range s.Files {
		size += f.Size
	}
	t.Add("weights", fmt.Sprintf("%s in %s, %s", text.Plural(s.Tensors, "tensor"), text.Plural(len(s.Files), "file"),
		bytesIn(s.Bytes, size)))
	for i, d := range s.DTypes {
		t.Add([]string{"dtypes", ""}[min(i, 1)], fmt.Sprintf("%s %s, %s", d.DType, text.Plural(d.Tensors, "tensor"),
			text.Bytes(d.Bytes)))
	}
	t.Add("audit", verdict(s.Findings))
	t.WriteText(w)
	return inspect.WriteFindings(w, s.Findings, summaryLines)
}

// String returns "28: 1 dense, 27 MoE".
func (l *layers) String() string { return fmt.Sprintf("%d: %s", l.Total, l.kinds()) }

// kinds returns "1 dense, 27 MoE", with the layers without an MLP if there are any.
func (l *layers) kinds() string {
	kinds := fmt.Sprintf("%d dense, %d MoE", l.Dense, l.MoE)
	if l.Bare > 0 {
		kinds += fmt.Sprintf(", %d without an MLP", l.Bare)
	}
	return kinds
}

// String returns "64 routed, 6 per token, 2 shared"; nil is "none".
func (e *experts) String() string {
	if e == nil {
		return "none"
	}
	return fmt.Sprintf("%d routed, %d per token, %d shared", e.Routed, e.PerToken, e.Shared)
}

// String returns "16,375,728,128, of which a token uses 2,828,650,496 (17.27 %)".
func (p *Parameters) String() string {
	return fmt.Sprintf("%s, of which a token uses %s (%s)", text.Grouped(p.Total), text.Grouped(p.Activated),
		text.Percent(p.Activated, p.Total))
}
