// cdi-oracle asks the CDI library that engines are built with what it makes of specification directories.
//
//	cdi-oracle --spec-dir DIR... --device NAME... < config.json   injects, prints config.json
//	cdi-oracle < config.json                                      reads and prints config.json
//	cdi-oracle --spec-dir DIR... --list                           prints devices and errors
//	cdi-oracle --version                                          prints the newest CDI version it knows
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type listing struct {
	Devices map[string]string   `json:"devices"`
	Errors  map[string][]string `json:"errors"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var dirs, devices []string
	list := false
	for len(args) > 0 {
		switch {
		case args[0] == "--version":
			fmt.Println(specs.CurrentVersion)
			return nil
		case args[0] == "--list":
			list = true
			args = args[1:]
			continue
		case len(args) > 1 && args[0] == "--spec-dir":
			dirs = append(dirs, args[1])
		case len(args) > 1 && args[0] == "--device":
			devices = append(devices, args[1])
		default:
			return fmt.Errorf("unknown argument %q", args[0])
		}
		args = args[2:]
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if cache == nil {
		return err
	}
	if list {
		return show(cache)
	}
	return inject(cache, devices)
}

func show(cache *cdi.Cache) error {
	found := listing{Devices: map[string]string{}, Errors: map[string][]string{}}
	for _, name := range cache.ListDevices() {
		found.Devices[name] = cache.GetDevice(name).GetSpec().GetPath()
	}
	for path, problems := range cache.GetErrors() {
		for _, problem := range problems {
			found.Errors[path] = append(found.Errors[path], problem.Error())
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func inject(cache *cdi.Cache, devices []string) error {
	config := &oci.Spec{}
	if err := json.NewDecoder(os.Stdin).Decode(config); err != nil {
		return fmt.Errorf("reading config.json: %w", err)
	}
	if len(devices) > 0 {
		if _, err := cache.InjectDevices(config, devices...); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(config)
}
