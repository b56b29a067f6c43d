// Command ggufblocks reads float32 numbers, little-endian, and writes them in a block type
// of GGUF; with -decode it does the opposite. scripts/gguf_blocks.py compares it with
// llama.cpp.
//
//	go run ./scripts/ggufblocks [-decode] [-row N] [-times N] TYPE < NUMBERS > BLOCKS
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log"
	"os"

	"dsmoe/model/tensor"
)

func main() {
	log.SetFlags(0)
	decode := flag.Bool("decode", false, "read blocks, write numbers")
	row := flag.Int("row", 0, "so many numbers are the importance of columns, before rows as long")
	times := flag.Int("times", 1, "encode so many times, to be measured")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	d, err := tensor.ParseDType(flag.Arg(0))
	check(err)
	in, err := io.ReadAll(os.Stdin)
	check(err)
	if *decode {
		values, err := decoded(d, in)
		check(err)
		_, err = os.Stdout.Write(encodedF32(values))
		check(err)
		return
	}
	x, err := decoded(tensor.F32, in)
	check(err)
	q, err := tensor.NewQuantiser(d)
	check(err)
	importance := x[:*row]
	x = x[*row:]
	out, lost := make([]byte, d.Bytes(int64(len(x)))), tensor.Loss{}
	for range *times {
		if *row > 0 {
			encodeRows(q, out, x, importance, &lost)
		} else {
			encode(q, out, x, &lost)
		}
	}
	_, err = os.Stdout.Write(out)
	check(err)
}

// encode writes all blocks, those of numbers that no block can stand for too.
func encode(q *tensor.Quantiser, out []byte, x []float32, lost *tensor.Loss) {
	const piece = 2048
	for ; len(x) > 0; x, out = x[min(piece, len(x)):], out[q.To.Bytes(int64(min(piece, len(x)))):] {
		part := x[:min(piece, len(x))]
		if q.Convert(out[:q.To.Bytes(int64(len(part)))], part, lost) == nil {
			continue
		}
		elements, size := q.To.Block()
		for i := range len(part) / elements {
			err := q.Convert(out[i*size:][:size], part[i*elements:][:elements], lost)
			if beyond := (*tensor.BeyondError)(nil); !errors.As(err, &beyond) {
				check(err)
			}
		}
	}
}

// encodeRows is encode of rows with the importance of their columns.
func encodeRows(q *tensor.Quantiser, out []byte, x, importance []float32, lost *tensor.Loss) {
	n, refused := len(importance), 0
	for i := 0; i < len(x); i += n {
		err := q.ConvertRow(out[q.To.Bytes(int64(i)):][:q.To.Bytes(int64(n))], x[i:i+n], importance, lost)
		if beyond := (*tensor.BeyondError)(nil); errors.As(err, &beyond) {
			refused++
		} else {
			check(err)
		}
	}
	log.Print(refused, " rows have numbers that no block can stand for")
}

func decoded(d tensor.DType, data []byte) ([]float32, error) {
	return tensor.Tensor{DType: d, Shape: []int{int(d.Elements(int64(len(data))))}, Data: data}.Float32s(nil)
}

func encodedF32(values []float32) []byte {
	data, err := binary.Append(nil, binary.LittleEndian, values)
	check(err)
	return data
}

func check(err error) {
	if err != nil {
		log.Fatal("ggufblocks: ", err)
	}
}
