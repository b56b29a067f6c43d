package convert_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// An FP8 checkpoint becomes one of BF16, read again and compared with its source.
func Example() {
	src, err := checkpoint.Open("../fixtures/v3-fp8/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer src.Close()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o := convert.Options{Options: plan.Options{DType: tensor.BF16}}
	r, err := convert.Run(context.Background(), filepath.Join(dir, "bf16"), src, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Tensors, r.Files, r.Verified)
	// Output: 91 [model.safetensors] true
}
