// Command ggufblocks reads float32 numbers, little-endian, and writes them in a block type
// of GGUF; with -decode it does the opposite. scripts/gguf_blocks.py compares it with
// llama.cpp.
//
//	go run ./scripts/ggufblocks [-decode] [-times N] TYPE < NUMBERS > BLOCKS
package main

import (
	"encoding/binary"
	"flag"
	"io"
	"log"
	"os"

	"dsmoe/model/tensor"
)

func main() {
	log.SetFlags(0)
	decode := flag.Bool("decode", false, "read blocks, write numbers")
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
	out, lost := make([]byte, d.Bytes(int64(len(x)))), tensor.Loss{}
	for range *times {
		check(q.Convert(out, x, &lost))
	}
	_, err = os.Stdout.Write(out)
	check(err)
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
