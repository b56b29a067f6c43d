package format

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Shard is one weight file to be written.
type Shard struct {
	Name   string // of the file
	Layout Layout // its header and the places of its tensors
}

// Shards divides tensors, given in the order of the model, among files of at most
// maxBytes of tensor data and lays out each. Nil metadata is the format's default.
func (f *Format) Shards(tensors []tensor.Info, maxBytes int64, metadata map[string]string) ([]Shard, error) {
	if len(tensors) == 0 {
		return nil, errors.New("no tensors to write")
	}
	if err := checkInfos(tensors); err != nil {
		return nil, err
	}
	groups := divide(tensors, maxBytes)
	shards := make([]Shard, len(groups))
	for i, group := range groups {
		l, err := f.Layout(group, metadata)
		if err != nil {
			return nil, err
		}
		shards[i] = Shard{f.fileName(i, len(groups)), l}
	}
	return shards, nil
}

// checkInfos refuses a name that occurs twice and a shape of no size.
func checkInfos(tensors []tensor.Info) error {
	seen := make(map[string]bool, len(tensors))
	for _, info := range tensors {
		if seen[info.Name] {
			return fmt.Errorf("tensor %s: name occurs twice", text.Quote(info.Name))
		}
		seen[info.Name] = true
		if _, err := tensor.Size(info.DType, info.Shape); err != nil {
			return fmt.Errorf("tensor %s: %w", text.Quote(info.Name), err)
		}
	}
	return nil
}

func (f *Format) fileName(i, n int) string {
	if n == 1 {
		return f.Single
	}
	return f.Shard(i, n)
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

// IndexText returns the index of shards as Python's json.dumps(indent=2) writes it,
// tensors in the given order.
func IndexText(tensors []tensor.Info, shards []Shard) []byte {
	files := make(map[string]string, len(tensors))
	for _, s := range shards {
		for i := range s.Layout.Len() {
			files[s.Layout.Info(i).Name] = s.Name
		}
	}
	total := int64(0)
	for _, info := range tensors {
		total += info.Bytes()
	}
	b := fmt.Appendf(nil, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", total)
	for i, info := range tensors {
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(append(b, "\n    "...), info.Name) // names were checked
		b, _ = jsontext.AppendQuote(append(b, ": "...), files[info.Name])
	}
	return append(b, "\n  }\n}"...)
}
