package format

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// shard is one weight file to be written.
type shard struct {
	Name   string  // of the file
	Layout *Layout // its header and the places of its tensors
}

// Shards divides tensors, given in the order of the model, among files of at most maxBytes
// of tensor data, and lays out each: a shard has a Name and a Layout. It refuses a name that occurs twice and a shape of no size. The zero
// Described gives the files the format's own keys and names.
func (f *Format) Shards(tensors []tensor.Info, maxBytes int64, d Described) ([]shard, error) {
	if len(tensors) == 0 {
		return nil, errors.New("no tensors to write")
	}
	seen := make(map[string]bool, len(tensors))
	for _, info := range tensors {
		if seen[info.Name] {
			return nil, fmt.Errorf("tensor %s: name occurs twice", text.Quote(info.Name))
		}
		seen[info.Name] = true
		if _, err := tensor.Size(info.DType, info.Shape); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", text.Quote(info.Name), err)
		}
	}
	ending := filepath.Ext(f.Single)
	stem := cmp.Or(d.Stem, strings.TrimSuffix(f.Single, ending))
	groups := divide(tensors, maxBytes)
	shards := make([]shard, len(groups))
	for i, group := range groups {
		l, err := f.Layout(group, Head{d.Keys, i, len(groups), len(tensors)})
		if err != nil {
			return nil, err
		}
		shards[i] = shard{stem + ending, l}
		if len(groups) > 1 {
			shards[i].Name = fmt.Sprintf("%s-%05d-of-%05d%s", stem, i+1, len(groups), ending)
		}
	}
	return shards, nil
}

// divide divides tensors among files as huggingface_hub's
// split_state_dict_into_shards_factory does: in order, a new file when the next
// tensor would exceed maxBytes; a tensor above maxBytes gets a file of its own
// and does not end the current one.
func divide(tensors []tensor.Info, maxBytes int64) (groups [][]tensor.Info) {
	var current []tensor.Info
	size := int64(0)
	for _, info := range tensors {
		n := info.Bytes()
		if n > maxBytes {
			groups = append(groups, []tensor.Info{info})
			continue
		}
		if size+n > maxBytes {
			groups = append(groups, current)
			current, size = nil, 0
		}
		current = append(current, info)
		size += n
	}
	if len(current) > 0 {
		groups = append(groups, current)
	}
	return groups
}

// WriteIndex writes the index of shards as Python's json.dumps(indent=2) does: files yields
// the name and the file of each tensor, and total is the bytes of all tensors.
func WriteIndex(w io.Writer, total int64, files iter.Seq2[string, string]) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", total)
	separator, line := "", []byte{}
	for name, file := range files {
		line, _ = jsontext.AppendQuote(append(line[:0], separator+"\n    "...), name) // names were checked
		line, _ = jsontext.AppendQuote(append(line, ": "...), file)
		b.Write(line)
		separator = ","
	}
	b.WriteString("\n  }\n}")
	return b.Flush()
}
