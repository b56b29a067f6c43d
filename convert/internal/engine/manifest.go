package engine

// dsmoe.manifest.json: which bytes of which source, put through what, gave which
// bytes. It holds no paths, and of times only a hash: the same conversion of the same files
// gives the same file.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// manifestFormat is the format that Manifest describes. In uncountedFormat, which is read too,
// the losses have no elements that were rounded, denormal ones included.
const (
	manifestFormat  = "dsmoe.manifest/3"
	uncountedFormat = "dsmoe.manifest/2"
)

// Manifest is a dsmoe.manifest.json.
type Manifest struct {
	Format   string           `json:"format"`   // manifestFormat or uncountedFormat
	Tool     string           `json:"tool"`     // name and version of the program
	Plan     string           `json:"plan"`     // hash of the plan
	Options  any              `json:"options"`  // that decided the bytes
	Verified bool             `json:"verified"` // the output was read again and compared with the source
	Sources  []plan.Source    `json:"sources"`  // weight files that were read
	State    string           `json:"state"`    // names the state that these were in when the output was last compared with them: Source.Key
	Files    []plan.File      `json:"files"`    // weight files that were written
	Others   []plan.Other     `json:"others"`   // files without weights
	Tensors  []ManifestTensor `json:"tensors"`  // by file, then offset
}

// ManifestTensor binds one tensor of the output to its sources.
type ManifestTensor struct {
	Name       string           `json:"name"`           // as it was written
	DType      tensor.DType     `json:"dtype"`          // as it was written
	Shape      []int            `json:"shape"`          // as it was written
	File       string           `json:"file"`           // that holds it
	Hash       string           `json:"hash"`           // of its bytes
	Operations []string         `json:"operations"`     // what was done
	Lost       *tensor.Loss     `json:"lost,omitempty"` // elements that are not the source's, or not finite; nil if there are none
	Sources    []ManifestSource `json:"sources"`        // what it was made of, in this order
}

// ManifestSource is a run of bytes of a stored tensor. Without verification the source
// of a tensor that is no plain copy has no hash: only verification reads sources for
// their own sake.
type ManifestSource struct {
	Tensor string       `json:"tensor,omitempty"` // as it is stored; empty if nothing was read
	DType  tensor.DType `json:"dtype"`            // as it is stored
	Begin  int64        `json:"begin"`            // first byte in the stored tensor
	End    int64        `json:"end"`              // the byte behind the last
	View   *tensor.View `json:"view,omitempty"`   // which elements of these, in which order; nil for all as they lie
	Hash   string       `json:"hash,omitempty"`   // of the elements in the order in which they were used
	Beside []string     `json:"beside,omitempty"` // tensors that were needed too, such as scales
}

// writeManifest writes the manifest, a tensor a line.
func (e *execution) writeManifest(w io.Writer) error {
	b := bufio.NewWriter(w)
	p := e.plan
	head, err := json.MarshalIndent(Manifest{Format: e.format, Tool: e.Tool, Plan: p.Hash, Options: p.Options,
		Verified: !e.Unverified, Sources: p.Sources, State: e.key, Files: p.Files, Others: e.others(), Tensors: []ManifestTensor{}}, "", "  ")
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

// others are the files without weights, with the hashes of those that were carried.
func (e *execution) others() []plan.Other {
	others := slices.Clone(e.plan.Others)
	for i := range others {
		if others[i].Carried {
			others[i].Hash = e.carried[others[i].Name]
		}
	}
	return others
}

func (e *execution) manifestTensor(i int) ManifestTensor {
	t, s := &e.plan.Tensors[i], &e.states[i]
	m := ManifestTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, File: e.plan.Files[t.File].Name,
		Hash: s.proof.Hash, Operations: t.Operations, Sources: make([]ManifestSource, len(t.Segments))}
	if s.lost.Any() {
		m.Lost = &s.lost
	}
	for j, g := range t.Segments {
		m.Sources[j] = ManifestSource{Tensor: g.Tensor, DType: g.DType, Begin: g.Begin, End: g.End, View: g.View}
		if s.proof.Segments != nil {
			m.Sources[j].Hash = s.proof.Segments[j]
		}
		for _, side := range g.Sides {
			m.Sources[j].Beside = append(m.Sources[j].Beside, side.Tensor)
		}
	}
	return m
}
