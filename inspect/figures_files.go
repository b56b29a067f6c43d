package inspect

// What there is to draw of a checkpoint's headers: where its bytes are, and in which dtypes.

import (
	"fmt"

	"dsmoe/text/page"
)

// dtypeMap draws how many bytes of each dtype each layer has.
func (c *Checkpoint) dtypeMap() page.Figure {
	return c.layerBytes("bytes of each layer by dtype", "dtype", func(_ int, t *Tensor) string { return t.DType.String() })
}

// maxFiles is how many rows the drawing of files has. Of more files, several share a row.
const maxFiles = 100

// fileMap draws how many bytes of each layer each file has.
func (c *Checkpoint) fileMap() page.Figure {
	by := max(1, (len(c.Files)+maxFiles-1)/maxFiles)
	return c.layerBytes("bytes of each layer by file", "file", func(file int, _ *Tensor) string {
		first, last := file/by*by, min((file/by+1)*by, len(c.Files))-1
		if first == last {
			return c.Files[first].Name
		}
		return fmt.Sprintf("files %d–%d", first+1, last+1)
	})
}

// maxLayers is how many columns these drawings have. Of more layers, several share a column.
const maxLayers = 200

// layerBytes draws bytes by layer and what of says of a tensor of a file.
func (c *Checkpoint) layerBytes(title, what string, of func(file int, t *Tensor) string) page.Figure {
	x, last := newCells(), 0
	for _, t := range c.tensors() {
		last = max(last, placeOf(t.Name).layer)
	}
	by := last/maxLayers + 1
	column := func(layer int) string {
		if by == 1 || layer < 0 {
			return layerLabel(layer)
		}
		return fmt.Sprintf("%d–%d", layer/by*by, (layer/by+1)*by-1)
	}
	x.unsorted = true
	for first := 0; first >= 0 && first <= last; first += by { // below 0 behind the largest int
		indexOf(column(first), &x.columns, x.column)
	}
	for i, f := range c.Files {
		for k := range f.Tensors {
			t := Tensor{Name: f.Tensors[k].Name, DType: f.Tensors[k].DType}
			x.add(of(i, &t), column(placeOf(t.Name).layer), float64(f.Tensors[k].Bytes())/(1<<20))
		}
	}
	return x.heatmap(page.Heatmap{Title: title, Name: "MiB", RowName: what, ColName: "layer", Scale: page.Log, Blank: true})
}
