// Package manifest reads and writes dsmoe.manifest.json, which binds the source's bytes, through operations, to the
// output's bytes.
package manifest

import (
	"bufio"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Format is the format that Manifest describes.
const Format = "dsmoe.manifest/4"

// maxBytes bounds a manifest in bytes; DeepSeek-V3's has some tens of megabytes.
const maxBytes = 1 << 30

// Manifest is a dsmoe.manifest.json. It holds no paths, and no times except in a hash: the same conversion of the
// same files gives the same manifest.
type Manifest struct {
	Format   string        `json:"format"`           // the constant Format
	Tool     string        `json:"tool"`             // name and version of the program
	Plan     string        `json:"plan"`             // hash of the plan
	Weights  string        `json:"weights"`          // plan.Plan.Weights
	Options  any           `json:"options"`          // options that decided the bytes
	Verified bool          `json:"verified"`         // the output was read again and compared with the source
	Origin   string        `json:"origin,omitempty"` // URL of the source, with its commit if any; "" for the disk
	Sources  []plan.Source `json:"sources"`          // weight files that were read
	State    string        `json:"state"`            // Source.Key at the last comparison with the sources
	Files    []plan.File   `json:"files"`            // weight files that were written
	Others   []plan.Other  `json:"others"`           // files without weights
	Tensors  []Tensor      `json:"tensors"`          // by file, then offset
	// Hash is the hash of the manifest's bytes up to the end of Tensors.
	Hash string `json:"manifest,omitempty"`

	found string // what Hash is by the bytes that were read
}

// Tensor binds one tensor of the output to its sources.
type Tensor struct {
	Name       string       `json:"name"`           // name in the output
	DType      tensor.DType `json:"dtype"`          // dtype in the output
	Shape      []int        `json:"shape"`          // shape in the output
	File       string       `json:"file"`           // weight file
	Hash       string       `json:"hash"`           // hash of its bytes
	Operations []string     `json:"operations"`     // operations applied, in order
	Lost       *tensor.Loss `json:"lost,omitempty"` // elements that changed or are not finite; nil without losses
	Sources    []Source     `json:"sources"`        // its sources, in order
}

// Source is a run of bytes of a stored tensor. Without verification only plain
// copies have a source hash: verification alone reads sources for their own sake.
type Source struct {
	Tensor string         `json:"tensor,omitempty"` // stored name; empty for synthetic elements
	DType  tensor.DType   `json:"dtype"`            // stored dtype
	Begin  int64          `json:"begin"`            // first byte in the stored tensor
	End    int64          `json:"end"`              // the byte behind the last
	Places *tensor.Places `json:"places,omitempty"` // where the matrix's elements lie; nil for row by row
	View   *tensor.View   `json:"view,omitempty"`   // which of these elements, in which order; nil for all in stored order
	Hash   string         `json:"hash,omitempty"`   // hash of the elements in the order of use
	Beside []string       `json:"beside,omitempty"` // sides, such as scales
}

// isCopy reports whether the tensor is one run of the source's bytes.
func (t *Tensor) isCopy() bool {
	return len(t.Sources) == 1 && t.Sources[0].View == nil && slices.Equal(t.Operations, []string{operation.Copy{}.Name()})
}

// Info returns the tensor's header entry.
func (t *Tensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Write writes the manifest with n tensors, one per line, and its hash.
func (m Manifest) Write(w io.Writer, n int, tensor func(i int) Tensor) error {
	h := digest.New()
	b := bufio.NewWriter(io.MultiWriter(w, h))
	m.Tensors = []Tensor{}
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
	b.WriteString("\n  ]")
	if err := b.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(w, HashLine(h.Name()))
	return err
}

// HashLine is the end of a manifest with a hash.
func HashLine(hash string) string { return ",\n  \"manifest\": \"" + hash + "\"\n}\n" }

// Edited says how the manifest is not as it was written; empty if it is.
func (m *Manifest) Edited() string {
	switch m.Hash {
	case m.found:
		return ""
	case "":
		return "was edited: it has no hash of its own"
	}
	return fmt.Sprintf("was edited: its hash is %s, not %s", m.found, text.Quote(m.Hash))
}

// Read reads a manifest without its tensors: it hands them to each, one by one; each may be nil. It refuses an unknown
// format and file names outside the directory.
func Read(dir source.Dir, name string, each func(*Tensor) error) (*Manifest, error) {
	f, err := dir.Data(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path, size := f.Path(), f.Size()
	if size > maxBytes {
		return nil, fmt.Errorf("%s: %s, more than the limit of %s",
			text.Quote(path), text.ExactBytes(size), text.Bytes(maxBytes))
	}
	var m Manifest
	var own error // of each
	tensors := func(d *jsontext.Decoder, _ *[]Tensor) error {
		if d.PeekKind() != '[' {
			return errors.New("tensors: not an array")
		}
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for d.PeekKind() != ']' {
			var t Tensor
			if err := json.UnmarshalDecode(d, &t); err != nil {
				return err
			}
			if each != nil {
				if own = each(&t); own != nil {
					return own
				}
			}
		}
		_, err := d.ReadToken()
		return err
	}
	h, end := digest.New(), int64(len(HashLine(digest.Of(nil))))
	sealed := io.NewSectionReader(f, 0, max(size-end, 0))
	all := io.MultiReader(io.TeeReader(sealed, h), io.NewSectionReader(f, sealed.Size(), size-sealed.Size()))
	err = json.UnmarshalRead(all, &m, json.WithUnmarshalers(json.UnmarshalFromFunc(tensors)))
	switch {
	case own != nil:
		return nil, own
	case err != nil:
		return nil, fmt.Errorf("%s: not a manifest: %s", text.Quote(path), text.Quote(err.Error()))
	}
	if m.Format != Format {
		return nil, fmt.Errorf("%s: format %s is not %s", text.Quote(path), text.Quote(m.Format), Format)
	}
	for _, name := range m.FileNames() {
		if filepath.Base(name) != name || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: file name %s leads out of the directory", text.Quote(path), text.Quote(name))
		}
	}
	m.found = h.Name()
	return &m, nil
}

// FileNames lists the files of the output, without the manifest.
func (m *Manifest) FileNames() (names []string) {
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	for _, f := range m.Others {
		names = append(names, f.Name)
	}
	return names
}

// Differences compares the recorded options and source files of an older plan with those of now.
func Differences(options any, sources []plan.Source, now *plan.Plan) (list []problem.Problem) {
	was, is := optionMembers(options), optionMembers(now.Options)
	for _, key := range unionOfKeys(was, is) {
		if was[key] != is[key] {
			list = append(list, problem.Problem{Cause: fmt.Sprintf("option %s: %s, not %s", text.Quote(key),
				cmp.Or(is[key], "absent"), cmp.Or(was[key], "absent"))})
		}
	}
	byName := func(files []plan.Source) map[string]plan.Source {
		names := map[string]plan.Source{}
		for _, f := range files {
			names[f.Name] = f
		}
		return names
	}
	old, files := byName(sources), byName(now.Sources)
	for _, name := range unionOfKeys(old, files) {
		was, had := old[name]
		is, has := files[name]
		cause := ""
		switch {
		case !had:
			cause = "is new in the source"
		case !has:
			cause = "is no longer in the source"
		case was.Size != is.Size:
			cause = fmt.Sprintf("has %s in the source, not %s", text.ExactBytes(is.Size), text.ExactBytes(was.Size))
		case was.Identity != is.Identity:
			cause = "has another header in the source"
		}
		if cause != "" {
			list = append(list, problem.Problem{File: name, Cause: cause})
		}
	}
	return list
}

// optionMembers returns the members of a JSON object as text.
func optionMembers(options any) map[string]string {
	var members map[string]any
	document, _ := stdjson.Marshal(options) // plain structs, or what was read as JSON
	stdjson.Unmarshal(document, &members)
	texts := map[string]string{}
	for key, value := range members {
		word, isText := value.(string)
		if !isText {
			b, _ := stdjson.Marshal(value)
			word = string(b)
		}
		texts[key] = text.Quote(word)
	}
	return texts
}

// unionOfKeys returns the keys of two maps, sorted.
func unionOfKeys[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// Rounds describes how the tensor was rounded, if it was.
func (t *Tensor) Rounds() (r tensor.Rounding) {
	quantised := t.DType.Blocked() || t.DType.Scaled()
	if t.DType != tensor.BF16 && t.DType != tensor.F16 && !quantised || len(t.Operations) == 0 ||
		t.Lost == nil || t.Lost.Rounded+t.Lost.Denormal+t.Lost.Flushed == 0 {
		return r
	}
	return tensor.Rounding{By: t.Operations[len(t.Operations)-1], Denormals: t.Lost.Rounded == 0 && !quantised}
}
