package checkpoint

import (
	"cmp"
	"fmt"
	"io"
	"regexp"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// AdapterSummary is an adapter at a glance.
type AdapterSummary struct {
	Path     string            `json:"path"`           // of the directory
	Type     string            `json:"peft_type"`      // LORA, or another kind of adapter
	Base     string            `json:"base,omitempty"` // model that it was trained on, as its config says
	Version  string            `json:"peft,omitempty"` // version of peft that wrote it
	RSLoRA   bool              `json:"rslora"`         // scale is lora_alpha/√r, not lora_alpha/r
	Tensors  int               `json:"tensors"`        // number of tensors that the file holds
	Numbers  int64             `json:"numbers"`        // of all tensors
	Bytes    int64             `json:"bytes"`          // of all tensors
	Modules  []adapterModules  `json:"modules"`        // modules that it changes, whose names differ in numbers, in the order of the file
	Problems []problem.Problem `json:"problems"`       // what keeps it from being merged into any checkpoint
}

// adapterModules are modules that an adapter changes alike.
type adapterModules struct {
	Module string       `json:"module"`          // name, with {} for numbers
	Count  int          `json:"count"`           // how many
	Rank   int          `json:"rank,omitempty"`  // rows of lora_A, of fused experts of all of them; absent for a tensor that is held whole
	Scale  float64      `json:"scale,omitempty"` // what the product is multiplied with; absent where the parameter's name decides it
	Rows   int          `json:"rows"`            // of the matrix that changes, or of its experts'
	Cols   int          `json:"cols"`            // of the same; 0 for a vector
	DType  tensor.DType `json:"dtype"`           // of the factors, or of the whole tensor
}

// numbersOf matches the numbers in a module's name.
var numbersOf = regexp.MustCompile(`\.\d+\b`)

// Summary sums up the adapter.
func (a *Adapter) Summary() *AdapterSummary {
	s := &AdapterSummary{Path: a.Path, Type: a.Type, Base: a.Base, Version: a.Version, RSLoRA: a.RSLoRA,
		Modules: []adapterModules{}, Problems: append([]problem.Problem{}, a.Problems...)}
	for info := range a.Tensors() {
		s.Tensors, s.Numbers, s.Bytes = s.Tensors+1, s.Numbers+int64(info.Len()), s.Bytes+info.Bytes()
	}
	at := map[adapterModules]int{}
	for _, c := range a.Changes {
		m := adapterModules{Module: numbersOf.ReplaceAllString(c.Module, ".{}")}
		if c.Whole != nil {
			m.Rows, m.DType = c.Whole.Shape[0], c.Whole.DType
			if len(c.Whole.Shape) > 1 {
				m.Cols = c.Whole.Shape[1]
			}
		} else {
			m.Rank, m.Rows, m.Cols, m.DType = c.A.Shape[0], c.B.Shape[0], c.A.Shape[1], c.A.DType
			if c.Embedding {
				m.Rows, m.Cols = m.Cols, m.Rows
			}
			if scale, known := a.Scale(c); known {
				m.Scale = scale
			}
		}
		i, seen := at[m]
		if !seen {
			i = len(s.Modules)
			at[m], s.Modules = i, append(s.Modules, m)
		}
		s.Modules[i].Count++
	}
	return s
}

// WriteText writes a line per fact, a table of the modules, and the problems.
func (s *AdapterSummary) WriteText(w io.Writer) error {
	fmt.Fprintln(w, text.Word(s.Path))
	t := text.Table{Align: "ll", Indent: "  "}
	t.Add("adapter", cmp.Or(s.Type, "no peft_type")+" of peft "+cmp.Or(s.Version, "before 0.18"))
	t.Add("trained on", text.Quote(s.Base))
	t.Add("holds", fmt.Sprintf("%s, %s, %s", text.Plural(s.Tensors, "tensor"), text.Plural(s.Numbers, "number"), text.Bytes(s.Bytes)))
	for _, p := range s.Problems {
		t.Add("not merged", text.Line(p.String()))
	}
	if len(s.Problems) == 0 {
		t.Add("merge", "dsmoe convert BASE DST --adapter "+text.Word(s.Path))
	}
	t.WriteText(w)
	m := text.Table{Align: "lrrrrl"}
	m.Add("module", "count", "rank", "scale", "shape", "dtype")
	for _, x := range s.Modules {
		rank, scale := "whole", ""
		if x.Rank > 0 {
			rank = text.Grouped(x.Rank)
		}
		if x.Scale != 0 {
			scale = fmt.Sprintf("%.4g", x.Scale)
		}
		shape := fmt.Sprint(x.Rows)
		if x.Cols > 0 {
			shape += fmt.Sprintf(" %d", x.Cols)
		}
		m.Add(text.Word(x.Module), text.Grouped(x.Count), rank, scale, "["+shape+"]", x.DType.String())
	}
	return m.WriteText(w)
}
