package engine

// dsmoe.manifest.json binds the source's bytes, through operations, to the output's bytes.
// It holds no paths, and no times except in a hash: the same conversion of the same files
// gives the same manifest.

import (
	"bufio"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/format"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// manifestFormat is the format that Manifest describes. uncountedFormat can be read too; its
// losses count no rounded elements, denormal ones included.
const (
	manifestFormat  = "dsmoe.manifest/3"
	uncountedFormat = "dsmoe.manifest/2"
)

// maxManifest bounds a manifest in bytes; DeepSeek-V3's has some tens of megabytes.
const maxManifest = 1 << 30

// Manifest is a dsmoe.manifest.json.
type Manifest struct {
	Format   string           `json:"format"`   // manifestFormat or uncountedFormat
	Tool     string           `json:"tool"`     // name and version of the program
	Plan     string           `json:"plan"`     // hash of the plan
	Options  any              `json:"options"`  // options that decided the bytes
	Verified bool             `json:"verified"` // the output was read again and compared with the source
	Sources  []plan.Source    `json:"sources"`  // weight files that were read
	State    string           `json:"state"`    // Source.Key at the last comparison with the sources
	Files    []plan.File      `json:"files"`    // weight files that were written
	Others   []plan.Other     `json:"others"`   // files without weights
	Tensors  []ManifestTensor `json:"tensors"`  // by file, then offset
}

// ManifestTensor binds one tensor of the output to its sources.
type ManifestTensor struct {
	Name       string           `json:"name"`           // name in the output
	DType      tensor.DType     `json:"dtype"`          // dtype in the output
	Shape      []int            `json:"shape"`          // shape in the output
	File       string           `json:"file"`           // weight file
	Hash       string           `json:"hash"`           // hash of its bytes
	Operations []string         `json:"operations"`     // operations applied, in order
	Lost       *tensor.Loss     `json:"lost,omitempty"` // elements that changed or are not finite; nil without losses
	Sources    []ManifestSource `json:"sources"`        // its sources, in order
}

// ManifestSource is a run of bytes of a stored tensor. Without verification only plain
// copies have a source hash: verification alone reads sources for their own sake.
type ManifestSource struct {
	Tensor string       `json:"tensor,omitempty"` // stored name; empty for synthetic elements
	DType  tensor.DType `json:"dtype"`            // stored dtype
	Begin  int64        `json:"begin"`            // first byte in the stored tensor
	End    int64        `json:"end"`              // the byte behind the last
	View   *tensor.View `json:"view,omitempty"`   // which of these elements, in which order; nil for all in stored order
	Hash   string       `json:"hash,omitempty"`   // hash of the elements in the order of use
	Beside []string     `json:"beside,omitempty"` // sides, such as scales
}

// Info returns the tensor's header entry.
func (t *ManifestTensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// write writes the manifest with n tensors, one per line.
func (m Manifest) write(w io.Writer, n int, tensor func(i int) ManifestTensor) error {
	b := bufio.NewWriter(w)
	m.Tensors = []ManifestTensor{}
	head, err := stdjson.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	const end = "]\n}"
	b.Write(head[:len(head)-len(end)])
	for i := range n {
		line, err := stdjson.Marshal(tensor(i))
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

// readManifest reads and checks a manifest without its tensors. It hands these to each, one
// by one; each may be nil.
func readManifest(path string, each func(*ManifestTensor) error) (*Manifest, error) {
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, fmt.Errorf("%s: %s, more than the limit of %s",
			text.Quote(path), text.ExactBytes(size), text.Bytes(maxManifest))
	}
	var m Manifest
	var own error // of each
	tensors := func(d *jsontext.Decoder, _ *[]ManifestTensor) error {
		return eachTensor(d, func(t *ManifestTensor) error {
			if each != nil {
				own = each(t)
			}
			return own
		})
	}
	err = json.UnmarshalRead(f, &m, json.WithUnmarshalers(json.UnmarshalFromFunc(tensors)))
	switch {
	case own != nil:
		return nil, own
	case err != nil:
		return nil, fmt.Errorf("%s: not a manifest: %s", text.Quote(path), text.Quote(err.Error()))
	}
	return &m, m.check(path)
}

// eachTensor reads a JSON array of tensors.
func eachTensor(d *jsontext.Decoder, do func(*ManifestTensor) error) error {
	if d.PeekKind() != '[' {
		return errors.New("tensors: not an array")
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != ']' {
		var t ManifestTensor
		if err := json.UnmarshalDecode(d, &t); err != nil {
			return err
		}
		if err := do(&t); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// check refuses an unknown format, and file names outside the directory.
func (m *Manifest) check(path string) error {
	if m.Format != manifestFormat && m.Format != uncountedFormat {
		return fmt.Errorf("%s: format %s is not %s", text.Quote(path), text.Quote(m.Format), manifestFormat)
	}
	for _, name := range m.fileNames() {
		if filepath.Base(name) != name || !filepath.IsLocal(name) {
			return fmt.Errorf("%s: file name %s leads out of the directory", text.Quote(path), text.Quote(name))
		}
	}
	return nil
}

func (m *Manifest) fileNames() (names []string) {
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	for _, f := range m.Others {
		names = append(names, f.Name)
	}
	return names
}
