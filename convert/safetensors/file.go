package safetensors

import (
	"io"
	"path/filepath"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// Format is safetensors: read strictly, written as Python's save_file writes it.
func Format() *format.Format {
	return &format.Format{
		Name:      "safetensors",
		Recognise: isWeights,
		Single:    "model.safetensors",
		// what transformers writes
		ShardBytes: 5_000_000_000,
		Index:      "model.safetensors.index.json",
		Config:     "config.json",
		IsIndex: func(file string) bool { // or a variant of it, such as model.safetensors.index.fp16.json
			return strings.HasSuffix(file, ".json") && strings.Contains(file, ".safetensors.index.")
		},
		Belongs: isWeights,
		Open:    format.Opener(readData),
		Layout: func(tensors []tensor.Info, _ format.Head) (*format.Layout, error) {
			Sort(tensors)
			return NewLayout(tensors, nil)
		},
	}
}

// Mistral is safetensors under the names that Mistral's own files have.
func Mistral() *format.Format {
	f := Format()
	f.Single, f.Index, f.Config = "consolidated.safetensors", "consolidated.safetensors.index.json", "params.json"
	f.IsIndex = func(file string) bool { return file == f.Index }
	f.Recognise = func(file string) bool { return isWeights(file) && strings.HasPrefix(file, "consolidated") }
	f.Belongs = f.Recognise
	return f
}

func isWeights(file string) bool { return filepath.Ext(file) == ".safetensors" }

// file is an open safetensors file with a checked header. It is safe for concurrent use.
type file struct {
	*header
	format.Data
}

// Open checks the header of the file at path on the disk: see readData.
func Open(path string) (*file, error) { return format.OpenFile(path, readData) }

// readData checks the header of d. It reads nothing of the weights. Errors are of type
// *problem.Error and wrap the system's.
func readData(d format.Data) (*file, error) {
	h, err := readHeader(d, d.Size(), d.Path())
	if err != nil {
		return nil, err
	}
	return &file{h, d}, nil
}

// Tensor returns a view of the named tensor, valid until Close.
func (f *file) Tensor(name string) (tensor.Tensor, error) {
	info, offset, ok := f.Lookup(name)
	return f.View(name, info, offset, ok)
}

// Stat describes the file.
func (f *file) Stat() format.Stat {
	return format.Stat{Size: f.Size(), Tensors: f.Len(), Metadata: f.Metadata}
}

// Identify writes the header's bytes.
func (f *file) Identify(w io.Writer) error { return format.WriteHead(w, f.Data, f.DataStart) }
