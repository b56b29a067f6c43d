package convert

// dsmoe.manifest.json: which bytes of which source, put through what, gave which
// bytes. It holds neither times nor paths: the same conversion gives the same file.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"dsmoe/model/tensor"
)

// manifestFormat is the format that Manifest describes.
const manifestFormat = "dsmoe.manifest/1"

// Manifest is a dsmoe.manifest.json.
type Manifest struct {
	Format   string           `json:"format"`
	Tool     string           `json:"tool"`
	Plan     string           `json:"plan"` // sha256
	Options  PlanOptions      `json:"options"`
	Verified bool             `json:"verified"` // the output was read again and compared with the source
	Sources  []SourceFile     `json:"sources"`
	Files    []PlannedFile    `json:"files"`
	Others   []OtherFile      `json:"others"`
	Tensors  []ManifestTensor `json:"tensors"`
}

// ManifestTensor binds one tensor of the output to its sources.
type ManifestTensor struct {
	Name       string           `json:"name"`
	DType      tensor.DType     `json:"dtype"`
	Shape      []int            `json:"shape"`
	File       string           `json:"file"`
	SHA256     string           `json:"sha256"`
	Operations []string         `json:"operations"`
	Lost       *tensor.Loss     `json:"lost,omitempty"`
	Sources    []ManifestSource `json:"sources"`
}

// ManifestSource is a run of bytes of a stored tensor; Scale names the tensor with
// the scales of dequantised FP8. Without verification the source of a tensor that is
// no plain copy has no hash: only verification reads sources for their own sake.
type ManifestSource struct {
	Tensor string       `json:"tensor"`
	DType  tensor.DType `json:"dtype"`
	Begin  int64        `json:"begin"`
	End    int64        `json:"end"`
	SHA256 string       `json:"sha256,omitempty"`
	Scale  string       `json:"scale,omitempty"`
}

// writeManifest writes the manifest, a tensor a line.
func (e *execution) writeManifest(w io.Writer) error {
	b := bufio.NewWriter(w)
	p := e.plan
	head, err := json.MarshalIndent(Manifest{Format: manifestFormat, Tool: e.o.Version, Plan: p.Hash, Options: p.Options,
		Verified: !e.o.NoVerify, Sources: p.Sources, Files: p.Files, Others: p.Others, Tensors: []ManifestTensor{}}, "", "  ")
	if err != nil {
		return err
	}
	const end = "]\n}"
	b.Write(head[:len(head)-len(end)])
	for i := range p.Tensors {
		line, err := json.Marshal(e.manifestTensor(i))
		if err != nil {
			return err
		}
		separator := ",\n    "
		if i == 0 {
			separator = "\n    "
		}
		fmt.Fprintf(b, "%s%s", separator, line)
	}
	b.WriteString("\n  " + end + "\n")
	return b.Flush()
}

func (e *execution) manifestTensor(i int) ManifestTensor {
	t, s := &e.plan.Tensors[i], &e.states[i]
	m := ManifestTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, File: e.plan.Files[t.File].Name,
		SHA256: s.proof.SHA256, Operations: t.Operations, Sources: make([]ManifestSource, len(t.Segments))}
	if s.lost.Any() {
		m.Lost = &s.lost
	}
	for j, g := range t.Segments {
		m.Sources[j] = ManifestSource{Tensor: g.Tensor, DType: g.DType, Begin: g.Begin, End: g.End}
		if s.proof.Segments != nil {
			m.Sources[j].SHA256 = s.proof.Segments[j]
		}
		if g.Scale != nil {
			m.Sources[j].Scale = g.Scale.Tensor
		}
	}
	return m
}
