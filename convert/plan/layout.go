package plan

import (
	"fmt"
	"io"

	"dsmoe/convert/format"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// layOut divides tensors, given in the order of the model, among files in the plan's format
// and fills in Files and Tensors. It returns, for each of Tensors, its index in tensors. The
// plan keeps no header; Header makes them anew.
func (p *Plan) layOut(tensors []tensor.Info, maxShardBytes int64) (sources []int32, err error) {
	f := p.Format
	shards, err := f.Shards(tensors, maxShardBytes, p.described)
	if err != nil {
		return nil, err
	}
	switch {
	case len(shards) > 1 && p.File != "":
		return nil, fmt.Errorf("%s is one file, not %d shards: give a directory", text.Quote(p.File), len(shards))
	case len(shards) > 1:
		p.Index = f.Index
	case p.File != "":
		shards[0].Name = p.File
	}
	index := make(map[string]int32, len(tensors))
	for i := range tensors {
		index[tensors[i].Name] = int32(i)
	}
	p.order, p.Tensors = make([]int32, len(tensors)), make([]Tensor, 0, len(tensors))
	for i, s := range shards {
		p.Files = append(p.Files, File{s.Name, s.Layout.Size(), len(s.Layout.Infos), digest.Of(s.Layout.Header())})
		for j, info := range s.Layout.Infos {
			at := index[info.Name]
			p.order[at] = int32(len(p.Tensors))
			sources = append(sources, at)
			p.Tensors = append(p.Tensors, Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, File: i,
				Offset: s.Layout.Offsets[j]})
		}
	}
	return sources, nil
}

// Header makes the bytes before the data of a file, an index in Files.
func (p *Plan) Header(file int) ([]byte, error) {
	var infos []tensor.Info
	for i := range p.Tensors {
		if t := &p.Tensors[i]; t.File == file {
			infos = append(infos, t.Info())
		}
	}
	l, err := p.Format.Layout(infos, format.Head{Keys: p.described.Keys, Shard: file, Shards: len(p.Files),
		Tensors: len(p.Tensors)})
	if err != nil {
		return nil, err
	}
	return l.Header(), nil
}

// DataStart returns how many bytes of a weight file to be written come before its tensors.
func (p *Plan) DataStart(file string) int64 {
	first := int64(0)
	for i, f := range p.Files {
		if f.Name != file {
			continue
		}
		first = f.Size
		for j := range p.Tensors {
			if t := &p.Tensors[j]; t.File == i {
				first = min(first, t.Offset)
			}
		}
	}
	return first
}

// WriteOther writes a file that is not carried.
func (p *Plan) WriteOther(w io.Writer, f Other) error {
	if f.Name == p.Index {
		return p.writeIndex(w)
	}
	_, err := w.Write(f.Text)
	return err
}

// writeIndex writes the index of the shards.
func (p *Plan) writeIndex(w io.Writer) error {
	_, total := p.Bytes()
	return format.WriteIndex(w, total, func(yield func(name, file string) bool) {
		for _, i := range p.order {
			if t := &p.Tensors[i]; !yield(t.Name, p.Files[t.File].Name) {
				return
			}
		}
	})
}

// describe returns config.json, with document as its text, and the index of several files.
func (p *Plan) describe(document []byte) []Other {
	others := []Other{{Name: p.Format.Config, Size: int64(len(document)), Hash: digest.Of(document), Text: document}}
	if p.Index != "" {
		h := digest.New()
		var size countedBytes
		p.writeIndex(io.MultiWriter(h, &size)) // neither fails
		others = append(others, Other{Name: p.Index, Size: int64(size), Hash: h.Name()})
	}
	return others
}

// countedBytes counts the bytes written to it.
type countedBytes int64

// Write counts.
func (c *countedBytes) Write(b []byte) (int, error) {
	*c += countedBytes(len(b))
	return len(b), nil
}
