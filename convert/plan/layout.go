package plan

import (
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
)

// layOut divides Order among files in the given format and fills in Files, Shards and
// the places of Tensors.
func (p *Plan) layOut(f *format.Format, maxShardBytes int64) (err error) {
	if p.Shards, err = f.Shards(p.Order, maxShardBytes, nil); err != nil {
		return err
	}
	if len(p.Shards) > 1 {
		p.Index = f.Index
	}
	for i, s := range p.Shards {
		p.Files = append(p.Files, File{s.Name, s.Layout.Size(), s.Layout.Len(), digest.Of(s.Layout.Header())})
		for j := range s.Layout.Len() {
			info := s.Layout.Info(j)
			p.Tensors = append(p.Tensors, Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, File: i, Offset: s.Layout.Offset(j)})
		}
	}
	return nil
}

// describe adds config.json, whose text is document, and for more than one file their
// index.
func (p *Plan) describe(document []byte) {
	p.Others = append(p.Others, written(checkpoint.ConfigName, document))
	if p.Index != "" {
		p.Others = append(p.Others, written(p.Index, format.IndexText(p.Order, p.Shards)))
	}
}

// written is a file with the given text.
func written(name string, data []byte) Other {
	return Other{Name: name, Size: int64(len(data)), Hash: digest.Of(data), Text: data}
}
