package convert

import (
	"errors"
	"fmt"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// shard is one weight file to be written.
type shard struct {
	name   string
	layout *safetensors.Layout
}

// planShards divides the tensors among files and lays out each. Within a file
// the order is that of Python's save_file.
func planShards(out Output, maxBytes int64) ([]shard, error) {
	if len(out.Tensors) == 0 {
		return nil, errors.New("no tensors to write")
	}
	seen := make(map[string]bool, len(out.Tensors))
	for _, info := range out.Tensors {
		if seen[info.Name] {
			return nil, fmt.Errorf("tensor %s: name occurs twice", safetensors.Quote(info.Name))
		}
		seen[info.Name] = true
		if _, err := tensor.Size(info.DType, info.Shape); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", safetensors.Quote(info.Name), err)
		}
	}
	groups := split(out.Tensors, maxBytes)
	shards := make([]shard, len(groups))
	for i, infos := range groups {
		safetensors.Sort(infos)
		l, err := safetensors.NewLayout(infos, out.Metadata)
		if err != nil {
			return nil, err
		}
		shards[i] = shard{shardName(i, len(groups)), l}
	}
	return shards, nil
}

func shardName(i, n int) string {
	if n == 1 {
		return weightsName
	}
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
}

// split divides tensors among files as huggingface_hub's
// split_state_dict_into_shards_factory does: in order, a new file when the next
// tensor would exceed maxBytes; a tensor above maxBytes gets a file of its own
// and does not end the current one.
func split(infos []tensor.Info, maxBytes int64) (groups [][]tensor.Info) {
	var current []tensor.Info
	size := int64(0)
	for _, info := range infos {
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

// indexOf returns the bytes of the index, tensors in the order of infos.
func indexOf(infos []tensor.Info, shards []shard) []byte {
	files := make(map[string]string, len(infos))
	for _, s := range shards {
		for i := range s.layout.Len() {
			files[s.layout.Info(i).Name] = s.name
		}
	}
	total := int64(0)
	weights := make([]weight, len(infos))
	for i, info := range infos {
		weights[i] = weight{info.Name, files[info.Name]}
		total += info.Bytes()
	}
	return appendIndex(nil, total, weights)
}
