package header

// What there is to draw of a checkpoint's headers: where its bytes are, and in which dtypes.

import (
	"fmt"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text/page"
)

// DTypeMap draws how many bytes of each dtype each layer has.
func DTypeMap(c *inspect.Checkpoint) page.Figure {
	byDType := func(_ int, d tensor.DType) string { return d.String() }
	return layerBytes(c, "bytes of each layer by dtype", "dtype", byDType)
}

// maxFiles is how many rows the drawing of files has. Of more files, several share a row.
const maxFiles = 100

// FileMap draws how many bytes of each layer each file has.
func FileMap(c *inspect.Checkpoint) page.Figure {
	by := max(1, (len(c.Files)+maxFiles-1)/maxFiles)
	return layerBytes(c, "bytes of each layer by file", "file", func(file int, _ tensor.DType) string {
		first, last := file/by*by, min((file/by+1)*by, len(c.Files))-1
		if first == last {
			return c.Files[first].Name
		}
		return fmt.Sprintf("files %d–%d", first+1, last+1)
	})
}

// maxLayers is how many columns these drawings have. Of more layers, several share a column.
const maxLayers = 200

// layerBytes draws bytes by layer and the row that rowOf gives a tensor of a file and a dtype.
func layerBytes(c *inspect.Checkpoint, title, rows string, rowOf func(file int, d tensor.DType) string) page.Figure {
	x, last := inspect.NewCells(), 0
	for t := range c.Tensors() {
		last = max(last, table.PlaceOf(nil, t.Name).Layer)
	}
	by := last/maxLayers + 1
	column := func(layer int) string {
		if by == 1 || layer < 0 {
			return inspect.LayerLabel(layer)
		}
		return fmt.Sprintf("%d–%d", layer/by*by, (layer/by+1)*by-1)
	}
	x.Unsorted = true
	for first := 0; first >= 0 && first <= last; first += by { // below 0 behind the largest int
		x.AddColumn(column(first))
	}
	for i, f := range c.Files {
		for _, t := range f.Tensors {
			x.Add(rowOf(i, t.DType), column(table.PlaceOf(nil, t.Name).Layer), float64(t.Bytes())/(1<<20))
		}
	}
	return x.Heatmap(page.Heatmap{Title: title, Name: "MiB", RowName: rows, ColName: "layer", Scale: page.Log,
		Blank: true})
}
